"""Tests of the advice where a stage does not fit, by sums that are made up."""

import pytest

from posttrain.memory_estimate.advice import LORA, changes_that_fit, plan_for_card, with_knobs
from posttrain.memory_estimate.stages import StageMemory, rows_at_once, stage_memory
from tests.memory_estimate.test_stages import CONFIG, knobs


def memory(stage, *, weights=0, optimizer=0, activations=0):
    parts = {"weights": weights, "optimizer": optimizer, "activations": activations}
    return StageMemory(stage, {name: size for name, size in parts.items() if size})


def advised(params, estimated, stages=("train_sft",), limit=100):
    too_large = [one for one in (estimated(stage, params) for stage in stages) if one.total > limit]

    def memories_of(names, own):
        return [estimated(name, own) for name in names]

    changes, changed = changes_that_fit(params, too_large, limit=limit, memories_of=memories_of), params
    for change in changes:
        changed = with_knobs(changed, change.knobs)
    return changes, changed


def names(changes):
    return [name for change in changes for name in change.knobs]


def test_what_alters_the_learning_least_comes_first_and_no_more_than_is_needed():
    def estimated(stage, params):
        saved = 30 * params.model.gradient_checkpointing + 30 * (params.model.dtype == "bfloat16")
        return memory(stage, weights=150 - saved)

    changes, changed = advised(knobs(), estimated)
    assert names(changes) == ["model.gradient_checkpointing", "model.dtype"]
    assert [one.stages[0].total for one in changes] == [120, 90]
    assert (changed.model.gradient_checkpointing, changed.model.dtype) == (True, "bfloat16")


def test_a_change_that_makes_nothing_smaller_is_not_advised():
    def estimated(stage, params):
        return memory(stage, optimizer=110 if params.train_sft.optimizer == "adamw" else 60)

    assert names(advised(knobs(), estimated)[0]) == ["train_sft.optimizer"]


@pytest.mark.parametrize(
    ("stage", "knob", "rows", "needed"),
    [
        ("train_sft", {"train_sft.batch_size": 64}, 16, 4),
        ("train_reward_model", {"train_reward_model.batch_size": 32}, 16, 4),  # 8 pairs
        ("train_policy", {"train_policy.algorithm.tasks_per_step": 16}, 16, 4),  # of 8 episodes, in 8 parts
    ],
)
def test_where_rows_take_the_most_fewer_go_through_at_once_and_the_step_stays_what_it_is(stage, knob, rows, needed):
    params = with_knobs(knobs(), knob)

    def estimated(_, own):
        return memory(stage, weights=10, activations=20 * (own.model.rows_at_once or rows))

    changes, changed = advised(params, estimated, [stage])
    assert [change.knobs for change in changes] == [{"model.rows_at_once": rows // 2}, {"model.rows_at_once": needed}]
    assert changed.model_copy(update={"model": params.model}) == params


@pytest.mark.parametrize(("stage", "width"), [("train_sft", 16), ("train_reward_model", 32), ("train_policy", 32)])
def test_a_limit_in_tokens_is_lowered_where_there_is_one(stage, width):
    """Rows as long as the knobs allow, of pairs both: 16 rows fit, and 4 are needed."""
    more = {
        "train_sft.batch_size": 64,
        "train_reward_model.batch_size": 32,
        "train_policy.algorithm.tasks_per_step": 16,
    }
    params = with_knobs(knobs(tokens_at_once=16 * width), more)
    assert rows_at_once(params, stage) == 16
    assert rows_at_once(with_knobs(params, {"model.rows_at_once": 6}), stage) == 6

    def estimated(_, own):
        return memory(stage, weights=10, activations=20 * rows_at_once(own, stage))

    changes, changed = advised(params, estimated, [stage])
    assert [change.knobs["model.tokens_at_once"] for change in changes] == [8 * width, 4 * width]
    assert rows_at_once(changed, stage) == 4


def test_where_weights_take_the_most_there_are_adapters_and_then_fewer_bits():
    def estimated(stage, params):
        adapter = params.model.adapter
        size = 200 if adapter.type == "full" else {"none": 120, "nf4": 40}[adapter.quantization]
        return memory(stage, weights=size)

    changes, changed = advised(knobs(), estimated, ["train_sft", "evaluate"])
    assert names(changes) == ["model.adapter", "model.adapter.quantization"]
    assert changed.model.adapter.model_dump() == {**LORA, "quantization": "nf4"}
    assert {one.stage for one in changes[-1].stages} == {"train_sft", "evaluate"}


def test_where_nothing_helps_the_last_sum_says_so():
    def estimated(stage, params):
        return memory(stage, weights=400 if params.model.adapter.type == "full" else 300)

    changes, _ = advised(knobs(), estimated)
    assert names(changes) == ["model.adapter"]
    assert changes[-1].stages[0].total == 300


@pytest.mark.parametrize("stage", ["train_sft", "train_policy"])
def test_every_change_gives_knobs_that_can_be(stage):
    """Among them the copy of the first model, whose alarm goes with it."""
    sums = iter(range(10_000, 0, -1))
    changes, _ = advised(
        knobs({"train_policy.algorithm.kl": {"type": "none"}}),
        lambda name, _: memory(name, weights=next(sums)),
        [stage],
        0,
    )
    assert {"model.adapter.quantization", f"{stage}.optimizer"} <= set(names(changes))
    assert ("train_policy.alarms.kl" in names(changes)) == (stage == "train_policy")


def test_stages_in_forks_and_phases_alone_take_what_they_take_in_one_process():
    params = knobs()
    assert len(params.train_policy.phases) == 2
    alone, in_forks = (plan_for_card(params, CONFIG, gpu_gib=0.9, num_workers=count) for count in (1, 2))
    assert in_forks == alone
    both = stage_memory("train_policy", params, CONFIG, gpu_bytes=alone.limit)
    assert {one.stage: one for one in alone.stages}["train_policy"] == both
