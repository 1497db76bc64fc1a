"""The committed `params.yaml` is valid, and every kind of mistake in it is refused with key, value
and remedy."""

import copy
import itertools
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel

from benchmarks.methods import CREDITS, credit_of
from posttrain.config.params import Params, ParamsError, load_params, parse_params, read_knobs
from posttrain.models.params import ScratchModel
from posttrain.train.advantages.states import StatesCredit
from posttrain.train.online.params import OnlineParams
from posttrain.train.params import DpoParams, KtoParams, OrpoParams
from posttrain.worlds.stocks.params import StocksParams

# what these tests are about stands here, so that they hold whatever a person has set in the
# committed file
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


def refusal(content: dict[str, Any]) -> str:
    with pytest.raises(ParamsError) as error:
        parse_params(content, source="params.yaml")
    assert error.value.code == 78
    return str(error.value)


@pytest.fixture
def edited(content: dict[str, Any], tmp_path: Path) -> Callable[[dict[str, str]], str]:
    """`edited({"train_sft.max_steps": "010"})` is the refusal of a file that has this text behind
    the key."""

    def message(texts: dict[str, str]) -> str:
        for number, key in enumerate(texts):
            set_at(content, tuple(key.split(".")), f"TEXT{number}TEXT")
        written = yaml.safe_dump(content, sort_keys=False)
        for number, text in enumerate(texts.values()):
            written = written.replace(f"TEXT{number}TEXT", text)
        (tmp_path / "params.yaml").write_text(written, encoding="utf-8")
        with pytest.raises(ParamsError) as error:
            load_params(tmp_path / "params.yaml")
        return str(error.value)

    return message


Edited = Callable[[dict[str, str]], str]


def set_at(content: Any, path: tuple[str, ...], value: Any) -> None:
    for part in path[:-1]:
        content = content[part]
    content[path[-1]] = value


def choices(
    section: type[BaseModel] = Params, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], list[type[BaseModel]]]]:
    """Where a choice stands in params.yaml, with all that there is to choose from; those inside of
    another choice's sections, too. Not the world's: its types share most of their knobs."""
    for name, field in section.model_fields.items():
        if name == "world":
            continue
        if field.discriminator:
            yield (*path, name), list(get_args(field.annotation))
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
]


def test_the_committed_file_is_accepted(repository: Path):
    assert load_params(repository / "params.yaml").model.type in ("scratch", "pretrained")


def test_a_misspelt_knob_is_refused_with_the_name_that_was_meant(content: dict[str, Any]):
    content["train_sft"]["max_step"] = content["train_sft"].pop("max_steps")
    message = refusal(content)
    assert "train_sft.max_step: unknown key" in message
    assert "Did you mean 'max_steps'?" in message
    assert "train_sft.max_steps: missing" in message


def test_every_problem_is_named_at_once(content: dict[str, Any]):
    content["world"]["max_difficulty"] = 9
    content["train_sft"]["lr"] = "1e-5"
    content["sead"] = content.pop("seed")
    message = refusal(content)
    assert "4 problem(s)" in message
    assert "world.max_difficulty = 9: Input should be less than or equal to 3" in message
    assert "write 1.0e-5" in message
    assert "Did you mean 'seed'?" in message


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("world", "type", "stoks"),
        ("agent", "max_turns", 0),
        ("agent", "max_turns", 2.5),
        ("agent", "max_turns", True),
        ("prepare_model", "lr", float("nan")),
        ("model", "gradient_checkpointing", "no"),
        ("resample_data", "coreset", {"strategy": "newest", "keep_frac": 0.5}),
    ],
)
def test_a_value_out_of_range_or_of_another_type_is_refused(
    content: dict[str, Any], section: str, key: str, value: Any
):
    content[section][key] = value
    assert f"{section}." in refusal(content)


def test_knobs_that_contradict_each_other_are_refused_with_both_values(content: dict[str, Any]):
    contradictory = copy.deepcopy(content)
    contradictory["agent"] |= {"max_new_tokens": 512, "max_context_tokens": 256}
    assert "max_new_tokens is 512 and max_context_tokens 256" in refusal(contradictory)
    contradictory = copy.deepcopy(content)
    contradictory["sample_preferences"]["num_tasks"] = contradictory["world"]["num_rl_tasks"] + 1
    assert "preferences are sampled on the rl split" in refusal(contradictory)
    contradictory = copy.deepcopy(content)
    contradictory["world"]["max_difficulty"] = 3
    assert "agent.max_new_tokens is 64, and the world stocks asks for messages of 112 tokens" in refusal(contradictory)
    contradictory["agent"]["max_new_tokens"] = 112
    parse_params(contradictory, source="params.yaml")
    contradictory = copy.deepcopy(content)
    contradictory["reward"]["weights"]["completion"] = 0.9
    assert "the weights sum to 1.3, not 1" in refusal(contradictory)


def test_a_key_written_twice_is_refused_because_only_the_last_would_count(tmp_path: Path):
    path = tmp_path / "params.yaml"
    path.write_text("seed: 1\nworld: {}\nseed: 2\n", encoding="utf-8")
    with pytest.raises(ParamsError, match="the key 'seed' stands twice"):
        load_params(path)


def test_a_file_that_is_absent_or_not_yaml_is_named(tmp_path: Path):
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
    assert parse_params(content, source="params.yaml").model.type == "pretrained"


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("010", "8"),
        ("1:30", "90"),
        ("0x10", "16"),
        ("0b11", "3"),
        ("1_000", "1000"),
        ("-012", "-10"),
        ("!!int '012'", "10"),
    ],
)
def test_an_integer_is_written_in_plain_decimal_digits(edited: Edited, written: str, read: str):
    message = edited({"train_sft.max_steps": written, "train_sft.eval_every_steps": "1"})
    assert (
        f"train_sft.max_steps = {written.removeprefix('!!int ').strip(chr(39))}: YAML reads this as {read}" in message
    )
    assert "plain decimal digits" in message


def test_a_number_with_a_point_is_plain_too_and_a_text_may_look_like_one_in_quotes(edited: Edited):
    message = edited({"train_sft.lr": "1:0.5", "agent.max_seconds": "6_00.0"})
    assert "train_sft.lr = 1:0.5: YAML reads this as 60.5" in message
    assert "agent.max_seconds = 6_00.0: YAML reads this as 600.0" in message
    assert read_knobs("a: '010'\nb: [1, -2, 0, 1.5, .5, 1.0e-5, 007.5]\n", source="x") == {
        "a": "010",
        "b": [1, -2, 0, 1.5, 0.5, 1e-5, 7.5],
    }


def test_a_number_in_a_list_or_behind_an_alias_is_looked_at_once(tmp_path: Path):
    with pytest.raises(ParamsError) as error:
        read_knobs("a: {b: [1, &x 010]}\nc: *x\n", source="plan.yaml")
    assert str(error.value).count("= 010") == 1
    assert "a.b.1 = 010: YAML reads this as 8" in str(error.value)


def test_a_key_that_takes_the_place_of_a_merged_one_stands_once(tmp_path: Path):
    assert read_knobs("a: &a {x: 1, y: 2}\nb: {<<: *a, x: 3}\n", source="x")["b"] == {"x": 3, "y": 2}
    with pytest.raises(ParamsError, match=r"b\.x: the key 'x' stands twice, in lines 2 and 2"):
        read_knobs("a: 1\nb: {x: 1, 'x': 2}\n", source="x")


def test_what_is_written_strangely_is_named_beside_all_else_that_is_wrong(edited: Edited):
    message = edited({"seed": "01\nseed: 2", "train_sft.batch_sise": "16", "train_sft.optimizer": "moun"})
    assert "seed = 01: YAML reads this as 1" in message
    assert "the key 'seed' stands twice, in lines 1 and 2" in message
    assert "Did you mean 'batch_size'?" in message
    assert (
        "train_sft.optimizer = 'moun': Input should be 'muon', 'adamw' or 'adamw_8bit'. Did you mean 'muon'?" in message
    )


@pytest.mark.parametrize("text", ["\xff\xfe", "seed: 2024-13-45\n", f"seed: {'1' * 5000}\n", "a: *nothing\n", "- [\n"])
def test_a_file_that_no_reader_of_yaml_takes_is_no_bug_of_ours(tmp_path: Path, text: str):
    (tmp_path / "params.yaml").write_bytes(text.encode("latin-1"))
    with pytest.raises(ParamsError, match="cannot be read as YAML"):
        load_params(tmp_path / "params.yaml")


@pytest.mark.parametrize("knob", ["seed", "world.seed"])
@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_has_32_bits(edited: Edited, content: dict[str, Any], knob: str, seed: int):
    assert f"{knob} = {seed}: Input should be" in edited({knob: str(seed)})
    for accepted in (0, 2**32 - 1):
        set_at(content, tuple(knob.split(".")), accepted)
        parse_params(content, source="params.yaml")


def test_every_whole_number_has_a_bound_above(content: dict[str, Any]):
    """A slip of the hand makes a number ten times as long, never a run of ten years."""
    numbers = [path for path, value in leaves(content) if type(value) is int]
    assert len(numbers) >= 35
    for path in numbers:
        wrong = copy.deepcopy(content)
        set_at(wrong, path, 10**15)
        assert f"{'.'.join(path)} = {10**15}: Input should be" in refusal(wrong), path


def leaves(content: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(content, dict):
        for name, value in content.items():
            yield from leaves(value, (*path, name))
    else:
        yield path, content


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        (
            {"train_sft.eval_every_steps": "5000"},
            "train_sft: eval_every_steps is 5000 and max_steps 800: the dev loss would never be measured",
        ),
        ({"train_policy.algorithm.tasks_per_step": "2000"}, "tasks_per_step is 2000 but world.num_rl_tasks only 640"),
        (
            {"train_reward_model.checkpoint_every_steps": "25"},
            "train_reward_model: checkpoint_every_steps is 25 and max_steps 24",
        ),
        (
            {"train_policy.checkpoint_every_steps": "89"},
            "train_policy: checkpoint_every_steps is 89 and algorithm.max_steps 88",
        ),
        (
            {"train_reward_model.holdout_frac": "0.001"},
            "holdout_frac is 0.001 and sample_preferences.num_tasks 256: 0 tasks would be held out",
        ),
        (
            {"sample_preferences.num_tasks": "1", "train_reward_model.holdout_frac": "0.9"},
            "1 tasks would be held out and 0 trained on",
        ),
        (
            {"sample_preferences.num_samples": "3"},
            "sample_preferences.num_samples = 3: Input should be greater than or equal to 4",
        ),
    ],
)
def test_what_cannot_work_together_is_known_before_anything_runs(edited: Edited, texts: dict[str, str], reason: str):
    message = edited(texts)
    assert "1 problem(s)" in message
    assert reason in message


def test_the_last_value_that_works_is_accepted(content: dict[str, Any]):
    content["train_sft"]["eval_every_steps"] = content["train_sft"]["max_steps"]
    content["train_policy"]["checkpoint_every_steps"] = content["train_policy"]["algorithm"]["max_steps"]
    content["train_policy"]["algorithm"]["tasks_per_step"] = content["world"]["num_rl_tasks"]
    parse_params(content, source="params.yaml")


def test_contradictions_between_sections_are_all_named(edited: Edited):
    message = edited({"train_policy.algorithm.tasks_per_step": "2000", "sample_preferences.num_tasks": "641"})
    assert "2 problem(s)" in message


@pytest.mark.parametrize("section", [DpoParams, KtoParams, OrpoParams])
def test_a_weight_that_would_change_nothing_is_refused(content: dict[str, Any], section: Any):
    name = section.__name__.removesuffix("Params").lower()
    content["train_policy"] |= {
        "algorithm": {"type": name, **yaml.safe_load(section.example)},
        "reward_model_weight": 0.1,
    }
    assert f"train_policy: reward_model_weight is 0.1 and algorithm.type {name}" in refusal(content)
    content["train_policy"]["reward_model_weight"] = 0.0
    parse_params(content, source="params.yaml")


def test_an_alarm_on_what_is_not_measured_is_refused(content: dict[str, Any]):
    content["train_policy"]["algorithm"]["kl"] = {"type": "none", "is_measured": False}
    content["train_policy"]["alarms"]["kl"] = 0.5
    assert "train_policy: alarms.kl is 0.5 and algorithm.kl.is_measured false" in refusal(content)
    content["train_policy"]["alarms"]["kl"] = None
    parse_params(content, source="params.yaml")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("stockz", "Did you mean 'stocks'?"),
        ("toi", "Did you mean 'toy'?"),
        (":", "there are stocks, toy, bfcl, tau2, http_env, gymnasium, module:function"),
        ("ours:", "module:function"),
        (":Dice", "module:function"),
        ("ours.dice", "module:function"),
        ("ours/dice.py:Dice", "module:function"),
        ("a:b:c", "module:function"),
    ],
)
def test_a_world_is_the_librarys_or_is_written_as_ones_own(content: dict[str, Any], name: str, hint: str):
    content["world"]["type"] = name
    message = refusal(content)
    assert f"world.type = {name!r}: there is no such type" in message
    assert hint in message


def test_a_score_counts_once(content: dict[str, Any]):
    content["reward"]["extra"] = [{"name": "ours:brave", "weight": 0.001}, {"name": "ours:brave", "weight": 0.002}]
    assert "reward: ours:brave stands twice" in refusal(content)


@pytest.mark.parametrize(
    ("targets", "hint"),
    [
        (["q_prj"], "Did you mean 'q_proj'?"),
        (["q_proj", "query"], "has query, but the linear layers"),
        (["lm_head"], "has lm_head"),  # the reward model has none
        (["embed_tokens"], "has embed_tokens"),  # no linear layer
        (["mlp.q_proj"], "has mlp.q_proj"),
        (["layers.2.self_attn.q_proj"], "has layers.2.self_attn.q_proj"),  # two layers, counted from 0
        (["proj"], "has proj"),
        ([], "at least 1 item"),
    ],
)
def test_an_adapter_of_a_model_from_scratch_names_layers_that_it_has(
    content: dict[str, Any], targets: list[str], hint: str
):
    content["model"]["adapter"] = {"type": "lora", "r": 4, "alpha": 8, "dropout": 0.0, "target_modules": targets}
    message = refusal(content)
    assert message.splitlines()[1].startswith(
        "  - model: adapter.target_modules has" if targets else "  - model.adapter.target_modules"
    )
    assert hint in message
    content["model"]["adapter"]["target_modules"] = ["q_proj", "self_attn.v_proj", "model.layers.1.mlp.down_proj"]
    parse_params(content, source="params.yaml")


def test_an_error_inside_a_choice_names_the_key_as_it_stands_in_the_file(edited: Edited):
    wrong = {"group_size": "1", "entropy_bonuss": "0.0", "average": "tokenz"}
    message = edited(
        {f"train_policy.algorithm.{name}": text for name, text in wrong.items()}
        | {
            "model.head_dim": "63",
            "model.adapter": "{type: lora, r: 0, alpha: 8, dropout: 0.0, target_modules: [q_proj]}",
        }
    )
    assert "train_policy.algorithm.group_size = 1: Input should be greater than or equal to 2" in message
    assert "train_policy.algorithm.entropy_bonuss: unknown key" in message
    assert "Did you mean 'entropy_bonus'?" in message
    assert "train_policy.algorithm.average = 'tokenz'" in message
    assert "Did you mean 'tokens'?" in message
    assert "model.head_dim = 63" in message
    assert "model.adapter.r = 0" in message
    assert not any(wrong in message for wrong in ("algorithm.online", "model.scratch", "adapter.lora"))


@pytest.mark.parametrize(
    ("key", "text", "said"),
    [
        (
            "train_policy.algorithm.type",
            "onlin",
            " = 'onlin': there is no such type; there are online, dpo, kto, orpo. Did you mean 'online'?",
        ),
        (
            "generate_data.source.type",
            "imports",
            " = 'imports': there is no such type; there are scripted, import, openai. Did you mean 'import'?",
        ),
        ("model.adapter", "{kind: full}", ".type: missing; it says which of full, lora is meant"),
        ("model.adapter", "[full]", " = ['full']: this is a section with a type, one of full, lora"),
        ("evaluate.teacher", "3", " = 3: this is a section with a type, one of expert, openai"),
    ],
)
def test_a_type_that_there_is_not_is_refused_with_those_that_there_are(edited: Edited, key: str, text: str, said: str):
    assert f"{key}{said}" in edited({key: text})


def test_a_key_forgotten_or_misspelt_in_a_choice_is_no_change_of_type(content: dict[str, Any], edited: Edited):
    del content["train_policy"]["algorithm"]["group_size"]
    misspelt = {"train_policy.algorithm.group_sizes": "8"}
    message = edited(
        {**misspelt, "generate_data.source": "{type: import, path: data/imported/x.jsonl, stop_tools: []}"}
    )
    assert "3 problem(s)" in message
    assert "train_policy.algorithm.group_size: missing" in message
    assert "Did you mean 'group_size'?" in message
    assert "generate_data.source.dev_frac: missing" in message


def block_of(message: str) -> tuple[str, str]:
    """What a refusal shows to be pasted, and the first line of it."""
    lines = message.splitlines()
    first = next(number for number, line in enumerate(lines) if line.endswith("what is accepted):")) + 1
    last = next((number for number in range(first, len(lines)) if lines[number].startswith("  - ")), len(lines))
    return "\n".join(lines[first:last]), lines[first]


@pytest.mark.parametrize(("path", "before", "after"), CHANGES)
def test_whoever_changes_a_type_is_shown_a_block_that_can_be_pasted(
    content: dict[str, Any], path: tuple[str, ...], before: type[BaseModel], after: type[BaseModel]
):
    valid = copy.deepcopy(content)
    set_at(valid, path, example_of(before))
    parse_params(valid, source="params.yaml")
    wrong = copy.deepcopy(valid)
    set_at(wrong, path, example_of(before) | {"type": type_of(after)})
    message = refusal(wrong)
    assert f"  - {'.'.join(path)}: its type is {type_of(after)}, and " in message
    block, first = block_of(message)
    assert first == "  " * (len(path) - 1) + f"{path[-1]}:"
    pasted = yaml.safe_load(textwrap.dedent(block))[path[-1]]
    assert set(pasted) == set(example_of(after))
    set_at(wrong, path, pasted)
    parse_params(wrong, source="params.yaml")


def test_whoever_changes_the_world_is_told_each_knob_that_the_other_has_not(content: dict[str, Any]):
    content["world"]["type"] = "toy"
    message = refusal(content)
    assert "world.flaw_rates.wrong_shop: missing" in message
    assert "world.flaw_rates.wrong_market: unknown key" in message


def test_a_world_of_ones_own_reads_further_knobs_itself(content: dict[str, Any]):
    content["world"] |= {"type": "ours.dice:Dice", "faces": 6}
    assert getattr(parse_params(content, source="params.yaml").world, "faces") == 6  # noqa: B009


ONLINE = {"type": "online", **yaml.safe_load(OnlineParams.example)}
BEST = {"baseline": {"type": "virtual_best", "best": 0.9}}
STATES = {"type": "states", **yaml.safe_load(StatesCredit.example)}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"credit": ONLINE["credit"] | BEST}, "baseline.best is 0.9 and an episode can earn 1: .* raise it to 1"),
        ({"credit": STATES | {"state_baseline": BEST["baseline"]}}, "credit.state_baseline.best is 0.9 and an episode"),
        ({"objective": {"type": "clip", "low": 0.2, "high": 0.2}}, "objective is clip and updates_per_step is 1"),
        ({"tasks_per_step": 641}, r"tasks_per_step is 641 but world\.num_rl_tasks only 640"),
        ({"credit": ONLINE["credit"] | {"drop": "most"}}, "credit.drop = 'most'"),
    ],
)
def test_learning_online_is_refused_where_its_parts_contradict(content: dict[str, Any], changes, said):
    content["train_policy"]["algorithm"] = ONLINE | changes
    with pytest.raises(ParamsError, match=said):
        parse_params(content, source="params.yaml")


@pytest.mark.parametrize("method", CREDITS)
def test_each_method_of_credit_is_a_line(content: dict[str, Any], method: str):
    content["train_policy"]["algorithm"] = ONLINE | {"credit": yaml.safe_load(CREDITS[method])}
    algorithm = parse_params(content, source="params.yaml").train_policy.algorithm
    assert isinstance(algorithm, OnlineParams)
    assert algorithm.credit == credit_of(method)


def test_a_block_keeps_the_values_that_a_person_has_set_and_says_what_is_accepted(edited: Edited):
    knobs = {"type": "dpo", "max_steps": "55", "beta": "0.0"}
    message = edited({f"train_policy.algorithm.{name}": text for name, text in knobs.items()})
    assert "train_policy.algorithm: its type is dpo, and max_generated_tokens, tasks_per_step, group_size" in message
    assert "are of online; batch_size, loss are missing" in message
    block, _ = block_of(message)
    assert block.splitlines() == [
        "  algorithm:",
        "    type: dpo",
        "    max_steps: 55  # at least 1 and at most 10000000; yours",
        "    batch_size: 32  # at least 1 and at most 100000",
        "    beta: 0.5  # above 0",
        "    loss: sigmoid  # sigmoid | hinge | ipo",
    ]
    assert "train_policy.algorithm.beta = 0.0: Input should be greater than 0" in message  # what 0.5 stands there for


def test_a_type_without_its_section_is_shown_the_section(edited: Edited):
    block, _ = block_of(edited({"model.adapter": "lora"}))
    assert yaml.safe_load(textwrap.dedent(block))["adapter"]["type"] == "lora"


@pytest.mark.parametrize(
    ("algorithm", "said"),
    [
        (DpoParams.example.replace("sigmoid", "sigmoidal"), "algorithm.loss = 'sigmoidal'"),
        (KtoParams.example.replace("batch_size: 32", "batch_size: 1"), "algorithm.batch_size = 1"),
        (KtoParams.example.replace("undesirable_weight: 1.0", "undesirable_weight: 0.0"), "undesirable_weight = 0.0"),
        (OrpoParams.example.replace("beta: 0.5", "beta: 0.0"), "algorithm.beta = 0.0"),
    ],
)
def test_learning_from_pairs_is_refused_out_of_its_range(content: dict[str, Any], algorithm: str, said: str):
    kind = "dpo" if "loss" in algorithm else "kto" if "desirable" in algorithm else "orpo"
    content["train_policy"] |= {"algorithm": {"type": kind, **yaml.safe_load(algorithm)}, "reward_model_weight": 0.0}
    assert said in refusal(content)


def test_the_rule_of_pairs_is_one_of_two(edited: Edited):
    message = edited({"sample_preferences.pairs": "nearest"})
    assert "sample_preferences.pairs = 'nearest': Input should be 'best_worst' or 'closest'" in message
