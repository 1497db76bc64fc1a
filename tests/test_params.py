"""The committed `params.yaml` is valid, and every kind of mistake in it is refused with key, value and remedy."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from posttrain.params import ParamsError, load_params, parse_params


@pytest.fixture
def content(repository: Path) -> dict[str, Any]:
    return yaml.safe_load((repository / "params.yaml").read_text(encoding="utf-8"))


def refusal(content: dict[str, Any]) -> str:
    with pytest.raises(ParamsError) as error:
        parse_params(content, source="params.yaml")
    assert error.value.code == 78
    return str(error.value)


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
        ("evaluate", "ci_level", 1.0),
        ("prepare_model", "lr", float("nan")),
        ("model", "gradient_checkpointing", "no"),
        ("resample_data", "coreset", {"strategy": "newest", "keep_frac": 0.5}),
    ],
)
def test_a_value_out_of_range_or_of_another_type_is_refused(content: dict[str, Any], section: str, key: str, value: Any):
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
    assert "world.max_difficulty is 3 and agent.max_new_tokens 64" in refusal(contradictory)
    contradictory["agent"]["max_new_tokens"] = 112
    parse_params(contradictory, source="params.yaml")
    contradictory = copy.deepcopy(content)
    contradictory["reward"]["weights"]["completion"] = 0.9
    assert "the weights sum to 1.5, not 1" in refusal(contradictory)


def test_a_key_written_twice_is_refused_because_only_the_last_would_count(tmp_path: Path):
    path = tmp_path / "params.yaml"
    path.write_text("seed: 1\nworld: {}\nseed: 2\n", encoding="utf-8")
    with pytest.raises(ParamsError, match="the key 'seed' stands twice"):
        load_params(path)


def test_a_file_that_is_absent_or_not_yaml_is_named(tmp_path: Path):
    with pytest.raises(ParamsError, match="run from the root"):
        load_params(tmp_path / "params.yaml")
    (tmp_path / "params.yaml").write_text("seed: [1\n", encoding="utf-8")
    with pytest.raises(ParamsError, match="not valid YAML"):
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
