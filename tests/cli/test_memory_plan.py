"""`posttrain plan --gpu`, as a person sees it."""

import json
from pathlib import Path

import pytest
import yaml

from tests.console import posttrain

STAGES = ["resample_data", "train_sft", "sample_preferences", "train_reward_model", "train_policy", "evaluate"]
CONFIG = {
    "model_type": "qwen2",
    "vocab_size": 2000,
    "hidden_size": 256,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 512,
}


@pytest.fixture
def here(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    content = yaml.safe_load((repository / "params.yaml").read_text(encoding="utf-8"))
    content["model"] = {
        "type": "pretrained",
        "name": "team/model",
        "adapter": {"type": "full"},
        "gradient_checkpointing": False,
        "dtype": "float32",
    }
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path


def test_the_parts_of_every_stage_stand_in_a_table(here: Path):
    ended = posttrain("plan", "--gpu", 24, "--params", "other.yaml", "--model", "model")
    assert ended.exit_code == 0
    head, *rows = ended.stdout.splitlines()
    columns = "stage weights gradients optimizer activations logits other models engine KV cache total"
    assert " ".join(head.split()) == columns
    assert [row.split()[0] for row in rows[: len(STAGES)]] == STAGES
    assert "Of 24 GiB 1.3 are left to CUDA itself" in rows[-1]
    assert "too" not in ended.stdout


def test_of_several_processes_the_first_is_told_and_a_server_beside_it(here: Path, repository: Path):
    how = ["--processes", 2, "--launch", repository / "infra/accelerate/fsdp.yaml", "--servers", 1]
    given = ["plan", "--gpu", 24, "--params", "other.yaml", "--model", "model"]
    alone, ended = posttrain(*given), posttrain(*given, *how)
    assert ended.exit_code == 0
    assert "engine" not in ended.stdout
    assert "train_policy: the first of 2 processes, each with a card of its own" in ended.stdout
    assert "vLLM server: 0.01 GiB of weights; nine tenths of a card" in ended.stdout
    assert "processes" not in alone.stdout


def test_an_experiment_is_estimated_by_its_first_override(here: Path, repository: Path):
    (here / "params.yaml").write_bytes((repository / "params.yaml").read_bytes())
    (here / "exp.yaml").write_text("overrides: [{name: short, set: {train_sft.batch_size: 4}}]")
    texts = [
        posttrain("plan", "--gpu", 24, "--model", "model", *more).stdout for more in ((), ("--params", "exp.yaml"))
    ]
    assert texts[0].splitlines()[1] == texts[1].splitlines()[1]
    assert texts[0].splitlines()[2] != texts[1].splitlines()[2]


def test_a_card_that_is_too_small_is_answered_with_what_to_change(here: Path):
    given = ["plan", "--gpu", 0.9, "--params", "other.yaml", "--model", "model"]
    text = posttrain(*given).stdout
    assert "too large: train_reward_model, train_policy. In params.yaml, one after the other:" in text
    assert "  model.rows_at_once: 8  → train_reward_model 0." in text
    assert text.endswith("then all fit\n")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--gpu", 0], "name the GiB of a card"),
        (["--gpu", 24, "train_sft"], "no target: all stages are estimated"),
        (["--model", "model"], "--servers belong to --gpu GIB"),
        (["--servers", 1], "--servers belong to --gpu GIB"),
        (["--gpu", 24, "--processes", 0], "name one process or more"),
        (["--gpu", 24, "--processes", 2, "--launch", "none.yaml"], "--launch none.yaml: there is no such file"),
        (["--gpu", 24, "--params", "other.yaml"], "'team/model' is not on this machine: name a folder"),
        (["--gpu", 24, "--params", "other.yaml", "--model", "hub"], "no model can be made of the config of 'hub'"),
        (["--gpu", 24, "--params", "none.yaml"], "none.yaml is not here"),
        (["--gpu", 24, "--params", "exp.yaml"], "params.yaml is not here"),
        (["--gpu", 24, "--params", "other.yaml", "--model", "odd"], "no model can be made of the config of 'odd'"),
        (["--gpu", 24, "--params", "other.yaml", "--model", "bert"], "a model of type 'bert' cannot be estimated"),
        (["--gpu", "nan"], "--gpu nan: name the GiB of a card"),
    ],
)
def test_what_cannot_be_estimated_is_refused_in_a_line(here: Path, given, said):
    (here / "odd").mkdir()
    (here / "odd" / "config.json").write_text('{"model_type": "none_such"}', encoding="utf-8")
    (here / "exp.yaml").write_text("overrides: [{name: short}]", encoding="utf-8")
    (here / "bert").mkdir()
    (here / "bert" / "config.json").write_text('{"model_type": "bert", "num_hidden_layers": 2}', encoding="utf-8")
    ended = posttrain("plan", *given)
    assert ended.exit_code == 78
    assert said in ended.stderr
