"""The committed `params.yaml` is valid, and every kind of mistake in it is refused with the key and
the kind of problem."""

import copy
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel

from posttrain.config.params import Params, ParamsError, load_params, parse_params, read_knobs
from posttrain.data.params import ImportSource
from posttrain.models.params import ScratchModel
from posttrain.runtime.exits import Problem
from posttrain.train.advantages.returns import StatesCredit
from posttrain.train.online.params import OnlineParams
from posttrain.train.policy_params import DpoParams, KtoParams, NoTraining, OrpoParams
from posttrain.worlds.catalog import WORLDS
from posttrain.worlds.stocks.params import StocksParams

# the knobs under test, so that the tests hold whatever stands in the committed file
KNOWN: dict[str, Any] = {
    "seed": 1,
    "world": {"type": "stocks", **yaml.safe_load(StocksParams.example)},
    "model": {"type": "scratch", **yaml.safe_load(ScratchModel.example)},
    "reward": {"extra": []},
    "generate_data": {"source": {"type": "scripted"}},
    "train_sft": {"max_steps": 800, "eval_every_steps": 100, "optimizer": "muon"},
    "sample_preferences": {"num_tasks": 256, "num_samples": 8},
    "train_reward_model": {"max_steps": 24, "holdout_frac": 0.2, "checkpoint_every_steps": 12},
    "train_policy": {
        "begin_with": None,
        "algorithm": {"type": "online", **yaml.safe_load(OnlineParams.example)},
        "reward_model_weight": 0.0,
        "checkpoint_every_steps": 22,
    },
    "evaluate": {"teacher": {"type": "expert"}},
}


@pytest.fixture
def content(repository: Path) -> dict[str, Any]:
    committed = yaml.safe_load((repository / "params.yaml").read_text(encoding="utf-8"))
    known = copy.deepcopy(KNOWN)
    return {
        name: {**section, **known.get(name, {})}
        if isinstance(section, dict) and name != "model"
        else known.get(name, section)
        for name, section in committed.items()
    }


class Refused:
    """A refusal of knobs: the first problem of each key."""

    def __init__(self, error: ParamsError) -> None:
        assert error.code == 78
        self.problems, self.text = {one.key: one for one in reversed(error.problems)}, str(error)
        self.kinds = {key: one.kind for key, one in self.problems.items()}

    def __getitem__(self, key: str) -> Problem:
        return self.problems[key]


def refused(content: dict[str, Any]) -> Refused:
    with pytest.raises(ParamsError) as error:
        parse_params(content, source="params.yaml")
    return Refused(error.value)


def accept(content: dict[str, Any]) -> Params:
    return parse_params(content, source="params.yaml")


def with_values(content: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """A copy of the knobs with some of them set, by their dotted keys."""
    changed = copy.deepcopy(content)
    for key, value in values.items():
        set_at(changed, tuple(key.split(".")), value)
    return changed


def set_at(content: Any, path: tuple[str, ...], value: Any) -> None:
    for part in path[:-1]:
        content = content[part]
    content[path[-1]] = value


def choices(
    section: type[BaseModel] = Params, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], list[type[BaseModel]]]]:
    """Keys of all discriminated unions, with their members. Not the world's: its types share most
    of their knobs."""
    for name, field in section.model_fields.items():
        if name == "world":
            continue
        if field.discriminator:
            alone = [
                one for one in get_args(field.annotation) if one is not NoTraining
            ]  # which asks for other knobs too
            yield (*path, name), alone
        elif isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from choices(field.annotation, (*path, name))
    if section is Params:
        scratch = get_args(Params.model_fields["model"].annotation)[0]
        yield from choices(scratch, ("model",))


def type_of(section: type[BaseModel]) -> str:
    return str(get_args(section.model_fields["type"].annotation)[0])


def example_of(section: type[BaseModel]) -> dict[str, Any]:
    return {"type": type_of(section), **yaml.safe_load(getattr(section, "example", "{}"))}


CHANGES = [
    pytest.param(path, before, after, id=f"{'.'.join(path)}-{type_of(before)}-{type_of(after)}")
    for path, sections in choices()
    for before, after in itertools.permutations(sections, 2)
    if set(example_of(before)) != set(example_of(after))
]


def test_the_committed_file_is_accepted(repository: Path):
    assert load_params(repository / "params.yaml").model.type in ("scratch", "pretrained")


def test_a_problem_is_a_sentence_with_key_value_reason_and_remedy(content: dict[str, Any]):
    found = refused(with_values(content, {"train_sft.optimizer": "moun", "train_sft.lr": "1e-5"}))
    assert found.text.splitlines() == [
        "params.yaml has 2 problem(s), nothing was run:",
        "  - train_sft.lr = '1e-5': a string, not a number; YAML reads 1e-5 as text. Write 1.0e-5",
        "  - train_sft.optimizer = 'moun': Input should be 'muon', 'adamw' or 'adamw_8bit'. Did you mean 'muon'?",
    ]


def test_every_problem_is_named_at_once(content: dict[str, Any]):
    content["world"]["max_difficulty"] = 9
    content["sead"] = content.pop("seed")
    content["train_sft"]["max_step"] = content["train_sft"].pop("max_steps")
    found = refused(content)
    assert found.kinds == {
        "seed": "missing",
        "world.max_difficulty": "out_of_range",
        "train_sft.max_steps": "missing",
        "train_sft.max_step": "unknown",
        "sead": "unknown",
    }
    assert "Did you mean 'max_steps'?" in found["train_sft.max_step"].remedy
    assert "Did you mean 'seed'?" in found["sead"].remedy


@pytest.mark.parametrize(
    ("key", "value", "kind"),
    [
        ("world.type", "stoks", "no_such_type"),
        ("agent.max_turns", 0, "out_of_range"),
        ("agent.max_turns", 2.5, "wrong_type"),
        ("agent.max_turns", True, "wrong_type"),
        ("prepare_model.lr", float("nan"), "out_of_range"),
        ("model.gradient_checkpointing", "no", "wrong_type"),
        ("sample_preferences.num_samples", 3, "out_of_range"),
        ("sample_preferences.pairs", "nearest", "no_such_choice"),
        ("train_policy.algorithm.group_size", 1, "out_of_range"),
        ("train_policy.algorithm.average", "tokenz", "no_such_choice"),
        ("train_policy.algorithm.type", "onlin", "no_such_type"),
        ("generate_data.source.type", "imports", "no_such_type"),
        ("model.adapter", ["full"], "no_section"),
        ("evaluate.teacher", 3, "no_section"),
        *((key, seed, "out_of_range") for key in ("seed", "world.seed") for seed in (-1, 2**32)),
    ],
)
def test_a_value_out_of_range_or_of_another_type_is_refused(content: dict[str, Any], key: str, value: Any, kind: str):
    assert refused(with_values(content, {key: value})).kinds == {key: kind}


PAIR_BASED = {DpoParams: "dpo", KtoParams: "kto", OrpoParams: "orpo"}
ONLINE = {"type": "online", **yaml.safe_load(OnlineParams.example)}
BEST = {"baseline": {"type": "virtual_best", "best": 0.9}}
STATES = {"type": "states", **yaml.safe_load(StatesCredit.example)}
ALGORITHM = "train_policy.algorithm"
BOUND = ("out_of_range", "no_such_choice")
TWICE = [{"name": "ours:brave", "weight": 0.001}, {"name": "ours:brave", "weight": 0.002}]


@pytest.mark.parametrize(
    ("values", "key", "part"),
    [
        ({"agent.max_new_tokens": 512, "agent.max_context_tokens": 256}, "agent", "max_context_tokens 256"),
        ({"sample_preferences.num_tasks": 641}, "sample_preferences.num_tasks", "640"),
        ({"world.max_difficulty": 3}, "agent.max_new_tokens", "112"),
        ({"validate_data.max_tokens": 2048}, "validate_data.max_tokens", "1024"),
        ({"reward.weights.completion": 0.9}, "reward", "sum to 1.3, not 1"),
        ({"reward.extra": TWICE}, "reward", "ours:brave stands twice"),
        ({"train_sft.eval_every_steps": 5000}, "train_sft", "max_steps 800"),
        ({"train_sft.learn": "separate_adapters"}, "train_sft.learn", "LoRA adapter"),
        ({"train_reward_model.checkpoint_every_steps": 25}, "train_reward_model", "max_steps 24"),
        ({"train_process_model.checkpoint_every_steps": 10_000}, "train_process_model", "a killed run"),
        ({"train_policy.checkpoint_every_steps": 89}, "train_policy", "max_steps 88"),
        ({"train_reward_model.holdout_frac": 0.001}, "train_reward_model.holdout_frac", "256"),
        (
            {"sample_preferences.num_tasks": 1, "train_reward_model.holdout_frac": 0.9},
            "train_reward_model.holdout_frac",
            "0 trained on",
        ),
        (
            {f"{ALGORITHM}.kl": {"type": "none", "is_measured": False}, "train_policy.alarms.kl": 0.5},
            "train_policy",
            "alarms.kl is 0.5",
        ),
        ({f"{ALGORITHM}.tasks_per_step": 2000}, f"{ALGORITHM}.tasks_per_step", "640"),
        (
            {"train_policy.begin_with": ONLINE | {"tasks_per_step": 2000}},
            "train_policy.begin_with.tasks_per_step",
            "640",
        ),
        ({f"{ALGORITHM}.credit": ONLINE["credit"] | BEST}, f"{ALGORITHM}.credit.baseline.best", "earn 1"),
        (
            {f"{ALGORITHM}.credit": STATES | {"state_baseline": BEST["baseline"]}},
            f"{ALGORITHM}.credit.state_baseline.best",
            "earn 1",
        ),
        ({f"{ALGORITHM}.objective": {"type": "clip", "low": 0.2, "high": 0.2}}, ALGORITHM, "updates_per_step is 1"),
        *(
            (
                {
                    ALGORITHM: {"type": name, **yaml.safe_load(section.example)},
                    "train_policy.reward_model_weight": 0.1,
                },
                "train_policy",
                f"algorithm.type {name}",
            )
            for section, name in PAIR_BASED.items()
        ),
    ],
)
def test_knobs_that_contradict_each_other_are_refused_before_anything_runs(
    content: dict[str, Any], values: dict[str, Any], key: str, part: str
):
    found = refused(with_values(content, values))
    assert found.kinds == {key: "contradiction"}
    assert part in found[key].reason


def test_contradictions_between_sections_are_all_named(content: dict[str, Any]):
    values = {f"{ALGORITHM}.tasks_per_step": 2000, "sample_preferences.num_tasks": 641}
    assert set(refused(with_values(content, values)).kinds) == set(values)


def test_the_last_value_that_works_is_accepted(content: dict[str, Any]):
    content["train_sft"]["eval_every_steps"] = content["train_sft"]["max_steps"]
    content["train_policy"]["checkpoint_every_steps"] = content["train_policy"]["algorithm"]["max_steps"]
    content["train_policy"]["algorithm"]["tasks_per_step"] = content["world"]["num_rl_tasks"]
    accept(content)
    accept(with_values(content, {"world.max_difficulty": 3, "agent.max_new_tokens": 112}))
    for section, name in PAIR_BASED.items():
        algorithm = {"type": name, **yaml.safe_load(section.example)}
        accept(with_values(content, {ALGORITHM: algorithm, "train_policy.checkpoint_every_steps": 1}))


def test_a_file_that_is_absent_or_no_yaml_is_named(tmp_path: Path):
    with pytest.raises(ParamsError, match="run from the root"):
        load_params(tmp_path / "params.yaml")
    (tmp_path / "params.yaml").write_text("seed: [1\n", encoding="utf-8")
    with pytest.raises(ParamsError, match="cannot be read as YAML: line 2"):
        load_params(tmp_path / "params.yaml")


def test_a_pretrained_model_is_one_string_away(content: dict[str, Any]):
    content["model"] = {
        "type": "pretrained",
        "name": "Qwen/Qwen2.5-7B-Instruct",
        "adapter": {"type": "lora", "r": 16, "alpha": 32, "dropout": 0.05, "target_modules": ["q_proj", "v_proj"]},
        "gradient_checkpointing": True,
        "dtype": "bfloat16",
    }
    assert accept(content).model.type == "pretrained"


@pytest.mark.parametrize("typed", ["010", "1:30", "0x10", "-0b11", "1_000", "1:0.5", "!!int '012'"])
def test_a_number_in_another_base_than_ten_is_refused_and_a_quoted_one_is_a_text(typed: str):
    with pytest.raises(ParamsError, match=r"line 2: .* is no decimal number"):
        read_knobs(f"a: '010'\nb: [1, {typed}]\n", source="plan.yaml")
    assert read_knobs("a: '010'\nb: [1, -2, 0, 1.5, .5, 1.0e-5, 0.5]\n", source="x")["a"] == "010"


def test_every_whole_number_has_a_bound_above(content: dict[str, Any]):
    """A slip of the hand makes a number ten times as long, never a run of ten years."""
    numbers = [path for path, value in leaves(content) if type(value) is int]
    assert len(numbers) >= 35
    for path in map(".".join, numbers):
        assert refused(with_values(content, {path: 10**15})).kinds.get(path) in BOUND, path


def leaves(content: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(content, dict):
        for name, value in content.items():
            yield from leaves(value, (*path, name))
    else:
        yield path, content


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("stockz", "Did you mean 'stocks'?"),
        ("toi", "Did you mean 'toy'?"),
        *((name, "") for name in (":", "ours:", ":Dice", "ours.dice", "ours/dice.py:Dice", "a:b:c")),
    ],
)
def test_a_world_is_the_librarys_or_is_written_as_ones_own(content: dict[str, Any], name: str, hint: str):
    problem = refused(with_values(content, {"world.type": name}))["world.type"]
    assert (problem.kind, problem.value, problem.remedy) == ("no_such_type", repr(name), hint)
    assert problem.reason.endswith(f"{', '.join(WORLDS)}, module:function")


@pytest.mark.parametrize(
    "targets",
    [
        ["q_prj"],
        ["q_proj", "query"],
        ["lm_head"],  # the reward model has none
        ["embed_tokens"],  # no linear layer
        ["mlp.q_proj"],
        ["layers.2.self_attn.q_proj"],  # two layers, counted from 0
        ["proj"],
    ],
)
def test_an_adapter_of_a_model_from_scratch_names_layers_that_it_has(content: dict[str, Any], targets: list[str]):
    adapter = {"type": "lora", "r": 4, "alpha": 8, "dropout": 0.0, "target_modules": targets}
    problem = refused(with_values(content, {"model.adapter": adapter}))["model"]
    assert (problem.kind, f"target_modules has {targets[-1]}" in problem.reason) == ("contradiction", True)


def test_layers_of_an_adapter_may_be_named_by_the_end_of_their_paths(content: dict[str, Any]):
    adapter = {"type": "lora", "r": 4, "alpha": 8, "dropout": 0.0, "target_modules": []}
    assert "model.adapter.target_modules" in refused(with_values(content, {"model.adapter": adapter})).kinds
    named = ["q_proj", "self_attn.v_proj", "model.layers.1.mlp.down_proj"]
    accept(with_values(content, {"model.adapter": adapter | {"target_modules": named}}))


def test_an_error_inside_a_choice_names_the_key_as_it_stands_in_the_file(content: dict[str, Any]):
    wrong = {
        f"{ALGORITHM}.entropy_bonuss": 0.0,
        "model.head_dim": 63,
        "model.adapter": {"type": "lora", "r": 0, "alpha": 8, "dropout": 0.0, "target_modules": ["q_proj"]},
    }
    found = refused(with_values(content, wrong))
    assert set(found.kinds) == {f"{ALGORITHM}.entropy_bonuss", "model.head_dim", "model.adapter.r"}
    assert "Did you mean 'entropy_bonus'?" in found[f"{ALGORITHM}.entropy_bonuss"].remedy


def test_a_key_forgotten_or_misspelt_in_a_choice_is_named_with_an_example_of_its_section(content: dict[str, Any]):
    assert refused(with_values(content, {"model.adapter": {"kind": "full"}})).kinds == {"model.adapter.type": "no_type"}
    del content["train_policy"]["algorithm"]["group_size"]
    source = {"type": "import", "path": "data/imported/x.jsonl", "stop_tools": []}
    found = refused(with_values(content, {f"{ALGORITHM}.group_sizes": 8, "generate_data.source": source}))
    assert found.kinds == {
        f"{ALGORITHM}.group_size": "missing",
        f"{ALGORITHM}.group_sizes": "unknown",
        "generate_data.source.dev_frac": "missing",
    }
    assert ImportSource.example in found["generate_data.source.dev_frac"].remedy


@pytest.mark.parametrize(("path", "before", "after"), CHANGES)
def test_a_changed_type_names_each_knob_that_the_new_one_lacks_or_does_not_have(
    content: dict[str, Any], path: tuple[str, ...], before: type[BaseModel], after: type[BaseModel]
):
    key = ".".join(path)
    accept(with_values(content, {key: example_of(before)}))
    kinds = refused(with_values(content, {key: example_of(before) | {"type": type_of(after)}})).kinds
    missing, unknown = (
        set(example_of(after)) - set(example_of(before)),
        set(example_of(before)) - set(after.model_fields),
    )
    wanted = {f"{key}.{name}": "missing" for name in missing} | {f"{key}.{name}": "unknown" for name in unknown}
    assert wanted.items() <= kinds.items()
    accept(with_values(content, {key: example_of(after)}))


def test_a_changed_type_is_said_in_a_line_for_what_is_missing_and_one_for_what_is_unknown(content: dict[str, Any]):
    found = refused(with_values(content, {f"{ALGORITHM}.type": "dpo"}))
    header, missing, unknown = found.text.splitlines()
    assert header == "params.yaml has 2 problem(s), nothing was run:"
    assert missing.startswith(f"  - {ALGORITHM}: missing batch_size, beta, loss; ")
    assert unknown.startswith(f"  - {ALGORITHM}: a section of type dpo has no ")
    assert all(name in unknown for name in ("group_size", "credit", "kl"))


def test_another_world_lacks_some_knobs_and_has_others(content: dict[str, Any]):
    kinds = refused(with_values(content, {"world.type": "toy"})).kinds
    assert kinds["world.flaw_rates.wrong_shop"] == "missing"
    assert kinds["world.flaw_rates.wrong_market"] == "unknown"


def test_a_world_of_ones_own_reads_further_knobs_itself(content: dict[str, Any]):
    content["world"] |= {"type": "ours.dice:Dice", "faces": 6}
    assert getattr(accept(content).world, "faces") == 6  # noqa: B009
