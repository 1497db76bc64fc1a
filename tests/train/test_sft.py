import json
import math

import pytest
import torch
from tiny import copy_rows, tiny_adapted_model, tiny_model
from tiny_runs import digest_of, run_here, train

from posttrain.models import distributed
from posttrain.models.codec import TokenRow
from posttrain.models.lora import split_by_adapter
from posttrain.train import sft
from posttrain.train.gradient_conflict import cosine_names, gradient_cosines
from posttrain.train.sft import _collated, _dataset, has_stopped_improving


def trained(folder, rows, **changes):
    """The model after a run on `rows`, and its metrics."""
    kinds = ["tool_selection"] * len(rows)
    return run_here("sft", folder, rows=rows, kinds=kinds, dev_rows=copy_rows(8, seed=1)[0], **changes)


def test_training_lowers_the_dev_loss_of_episodes_never_seen(tmp_path):
    _, lines = run_here("sft", tmp_path, max_steps=24, eval_every_steps=6, lr=2e-2)

    losses = [line["eval_loss"] for line in lines if "eval_loss" in line]
    assert len(losses) == 4
    assert losses[-1] < losses[0] - 0.1


def test_a_tool_result_is_never_trained_on(tmp_path):
    # Only the read tokens differ in where nothing the agent writes can attend to: behind its last
    # token. Equal weights: no loss was taken there.
    rows = [TokenRow([2, 5, 2, 6, 1, tail, tail], [0, 0, 0, 1, 1, 0, 0], [0, 0, 0, 3, 3, 0, 0]) for tail in (7, 9)]

    one, _ = trained(tmp_path / "one", rows[:1] * 8)
    other, _ = trained(tmp_path / "other", rows[1:] * 8)

    assert digest_of(one) == digest_of(other)


# the agent writes 6, the world answers 8 9, the agent writes 7 and the end
OBSERVING = TokenRow([2, 5, 2, 6, 8, 9, 7, 1], [0, 0, 0, 1, 0, 0, 1, 1], [0, 0, 0, 3, 4, 4, 3, 3])


@pytest.mark.parametrize("is_small", [True, False])
def test_results_weigh_w_in_the_mean_over_the_agents_tokens(tmp_path, monkeypatch, is_small):
    """(l(6) + l(7) + l(end) + w l(8) + w l(9)) / 3; the prompt 2 5 2 is in no loss."""
    monkeypatch.setattr(sft, "is_small_on_cpu", lambda model: is_small)
    logprobs = tiny_model()(torch.tensor([OBSERVING.input_ids])).logits[0].log_softmax(-1).detach()
    loss_T = [-float(logprobs[place, word]) for place, word in enumerate(OBSERVING.input_ids[1:])]

    _, lines = trained(tmp_path, [OBSERVING] * 8, max_steps=4, observation_weight=0.25)

    assert lines[0]["loss"] == pytest.approx((loss_T[2] + loss_T[5] + loss_T[6] + (loss_T[3] + loss_T[4]) / 4) / 3)
    assert lines[0]["loss_observation"] == pytest.approx((loss_T[3] + loss_T[4]) / 2)


def test_without_a_weight_results_change_nothing_but_are_learnt_with_one(tmp_path):
    unmarked = TokenRow(OBSERVING.input_ids, OBSERVING.mask, [0, 0, 0, 3, 0, 0, 3, 3])
    of_none, lines_of_none = trained(tmp_path / "none", [unmarked] * 8)
    of_zero, lines_of_zero = trained(tmp_path / "zero", [OBSERVING] * 8, observation_weight=0.0)
    assert (digest_of(of_zero), lines_of_zero) == (digest_of(of_none), lines_of_none)

    _, lines = trained(tmp_path / "some", [OBSERVING] * 8, observation_weight=1.0)
    losses = [line["loss_observation"] for line in lines if "loss" in line]
    assert losses[-1] < losses[0] - 0.1


def test_rows_of_observations_alone_are_learnt_from(tmp_path):
    alone = TokenRow(OBSERVING.input_ids, [0] * 8, [0, 0, 0, 0, 4, 4, 0, 0])
    _, lines = trained(tmp_path, [alone] * 8, observation_weight=0.1)
    found = [(line["loss_observation"], line["loss_reasoning"]) for line in lines if "loss" in line]
    assert found[-1][0] < found[0][0]
    assert found[0][1] is None


def test_the_loss_of_a_step_is_the_mean_over_its_tokens_whatever_parts_it_is_cut_into(tmp_path, monkeypatch):
    # A row of one token and a row of five: a mean of the parts' means would weigh the one token as
    # much as the five.
    rows = [
        TokenRow([2, 5, 2, 1], [0, 0, 0, 1], [0, 0, 0, 3]),
        TokenRow([2, 5, 2, 7, 8, 9, 4, 1], [0] * 3 + [1] * 5, [0] * 3 + [3] * 5),
    ] * 4
    # AdamW: Muon makes all directions of a step equally long, those too in which the gradient is
    # rounding and no more.
    in_parts, lines_in_parts = trained(tmp_path / "parts", rows, max_steps=4, optimizer="adamw")
    monkeypatch.setattr(distributed, "NUM_PARTS", 1)
    whole, lines_whole = trained(tmp_path / "whole", rows, max_steps=4, optimizer="adamw")

    assert [line["loss"] for line in lines_in_parts if "loss" in line] == pytest.approx(
        [line["loss"] for line in lines_whole if "loss" in line], abs=1e-5
    )
    for name, weights in in_parts.state_dict().items():
        torch.testing.assert_close(weights, whole.state_dict()[name], atol=1e-4, rtol=1e-3)


def test_reasoning_and_calls_are_logged_apart(tmp_path):
    _, lines = trained(tmp_path, copy_rows(16)[0], max_steps=4)

    assert {"loss", "loss_reasoning", "loss_call", "lr", "grad_norm", "step"} == set(lines[0])
    assert {"eval_loss", "eval_loss_reasoning", "eval_loss_call", "step"} == set(lines[-1])


def test_a_category_that_no_row_has_is_null(tmp_path):
    rows = [TokenRow([2, 5, 2, 6, 1], [0, 0, 0, 1, 1], [0, 0, 0, 3, 3])] * 8

    _, lines = trained(tmp_path, rows, max_steps=4)

    assert (lines[0]["loss_reasoning"], lines[0]["loss_call"]) == (None, None)


def test_patience_counts_evaluations_that_were_no_better_than_the_best():
    assert not has_stopped_improving([], patience=1)
    assert not has_stopped_improving([3.0, 2.0, 2.0], patience=2)
    assert has_stopped_improving([3.0, 2.0, 2.0, 2.1], patience=2)
    assert not has_stopped_improving([3.0, 2.0, 2.5, 1.9], patience=2)


def test_a_run_that_gets_worse_stops_early_and_ends_with_its_best_weights(tmp_path):
    # The dev words are the training words the wrong way round, so that learning raises the dev loss
    # after the first evaluations.
    code, result = train("sft_on_wrong_dev", tmp_path)
    resumed_code, resumed = train("sft_on_wrong_dev", tmp_path)

    lines = [json.loads(line) for line in result["metrics"].splitlines()]
    evaluations = {line["step"]: line["eval_loss"] for line in lines if "eval_loss" in line}
    best_step = min(evaluations, key=evaluations.get)
    assert (code, resumed_code) == (0, 0)
    assert max(evaluations) < 200
    assert best_step < max(evaluations)
    assert (tmp_path / f"checkpoint-{best_step}").is_dir()
    assert resumed == result
    assert result["eval_loss"] == pytest.approx(evaluations[best_step])


# a prompt, two tokens of reasoning, two of a call, the end
THINKING = TokenRow([2, 5, 2, 8, 9, 6, 7, 1], [0, 0, 0, 1, 1, 1, 1, 1], [0, 0, 0, 1, 1, 2, 2, 3])


def test_the_cosine_is_between_the_gradients_of_calls_and_of_reasoning():
    model = tiny_model()

    def gradient(places):
        model.zero_grad()
        logprobs = model(torch.tensor([THINKING.input_ids])).logits[0].log_softmax(-1)
        (-sum(logprobs[place - 1, THINKING.input_ids[place]] for place in places)).backward()
        return {name: one.grad.flatten().double().clone() for name, one in model.named_parameters()}

    calls, reasoning = gradient([5, 6]), gradient([3, 4])
    model.zero_grad()
    found = gradient_cosines(model, [_collated(_dataset([THINKING]).to_list(), pad_id=0)])

    def cosine(names):
        ours, theirs = (torch.cat([one[name] for name in names]) for one in (calls, reasoning))
        return float(ours @ theirs / (ours.norm() * theirs.norm()))

    layers = {number: [name for name in calls if f"layers.{number}." in name] for number in (0, 1)}
    assert found["grad_cosine"] == pytest.approx(cosine(list(calls)), abs=1e-6)
    for number, names in layers.items():
        assert found[f"grad_cosine_layer_{number}"] == pytest.approx(cosine(names), abs=1e-6)
    assert set(found) == set(cosine_names(model))
    assert all(one.grad is None for one in model.parameters())
    same = TokenRow(THINKING.input_ids, THINKING.mask, [0, 0, 0, 1, 1, 1, 1, 3])
    assert math.isnan(gradient_cosines(model, [_collated(_dataset([same]).to_list(), pad_id=0)])["grad_cosine"])


def test_reasoning_is_left_out_or_learnt_in_steps_of_its_own(tmp_path):
    silent = TokenRow(THINKING.input_ids, [0, 0, 0, 0, 0, 1, 1, 1], THINKING.category)
    without, lines = trained(tmp_path / "without", [THINKING] * 8, max_steps=4, learn="no_reasoning")
    by_hand, _ = trained(tmp_path / "by_hand", [silent] * 8, max_steps=4)
    assert digest_of(without) == digest_of(by_hand)
    assert lines[0]["loss_reasoning"] is None

    _, turns = trained(tmp_path / "turns", [THINKING] * 8, max_steps=4, learn="alternating", gradient_cosine_rows=4)
    steps = [line for line in turns if "loss" in line]
    assert [line["loss_reasoning"] is None for line in steps] == [True, False, True, False]
    assert [line["loss_call"] is None for line in steps] == [False, True, False, True]
    assert steps[0]["loss"] == lines[0]["loss"]
    assert any("grad_cosine" in line for line in turns)


def test_reasoning_that_is_never_learnt_is_no_part_of_the_dev_loss(tmp_path):
    def dev_losses(name, dev_row, **knobs):
        rows, kinds = [THINKING] * 8, ["tool_selection"] * 8
        how = {"dev_rows": [dev_row], "max_steps": 8, "eval_every_steps": 2, "learn": "no_reasoning", **knobs}
        _, lines = run_here("sft", tmp_path / name, rows=rows, kinds=kinds, **how)
        return [(line["eval_loss"], line["eval_loss_reasoning"]) for line in lines if "eval_loss" in line]

    silent = TokenRow(THINKING.input_ids, [0, 0, 0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 0, 2, 2, 3])
    found, expected = dev_losses("thinking", THINKING), dev_losses("silent", silent)
    assert [loss for loss, _ in found] == pytest.approx([loss for loss, _ in expected], rel=1e-6)
    assert all(of_reasoning is not None for _, of_reasoning in found)


def test_calls_and_reasoning_are_each_learnt_by_an_adapter_in_steps_of_its_own(tmp_path):
    def after(num_steps):
        model = tiny_adapted_model(has_second=True)
        knobs = {"lr": 1e-2, "lr_warmup_frac": 0.0, "lr_schedule": "constant", "eval_every_steps": num_steps}
        how = {"learn": "separate_adapters", "optimizer": "adamw", "max_steps": num_steps}
        rows, kinds = [THINKING] * 8, ["tool_selection"] * 8
        run_here("sft", tmp_path / str(num_steps), model, rows=rows, kinds=kinds, dev_rows=[THINKING], **knobs | how)
        return split_by_adapter(model)

    start, one, two, three = split_by_adapter(tiny_adapted_model(has_second=True)), after(1), after(2), after(3)
    assert are_equal(one[1], start[1])
    assert not are_equal(one[0], start[0])
    assert are_equal(two[0], one[0])
    assert not are_equal(two[1], one[1])
    assert are_equal(three[1], two[1])
    assert not are_equal(three[0], two[0])


def are_equal(one, other):
    return all(ours.equal(theirs) for ours, theirs in zip(one, other, strict=True))
