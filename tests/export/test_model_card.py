"""The card of an exported model says what was measured of its very weights, and refuses where it
cannot."""

import json
import shutil

import pytest
import yaml

from posttrain.export.model_card import model_card
from posttrain.pipeline.git import git
from posttrain.provenance.fingerprint import file_states, lock_form, md5_of
from posttrain.runtime.exits import ConfigurationError, DataError
from tests.report.example import evaluation

MODEL = {"type": "scratch", "dtype": "float32"}


@pytest.fixture
def root(tmp_path):
    (tmp_path / "data" / "models" / "policy").mkdir(parents=True)
    (tmp_path / "data" / "models" / "policy" / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "reports" / "evaluate").mkdir(parents=True)
    (tmp_path / "reports" / "evaluate" / "policy.json").write_text(json.dumps(evaluation(0.9)))
    write_lock(tmp_path, MODEL)
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    return tmp_path


def write_lock(root, model):
    report, models = "reports/evaluate/policy.json", "data/models/policy"
    out = {"path": report, "md5": md5_of(root / report)}
    knobs = {"params.yaml": {"seed": 3, "model": model}}
    stages = {
        "generate_data": {"cmd": "", "outs": [{"path": "data/raw/tasks.parquet", "md5": "0123"}]},
        "train_sft": {"cmd": "", "params": {"params.yaml": {"train_sft": {"lr": 0.5}}}},
        "train_policy": {"cmd": "", "params": {"params.yaml": {"train_policy": {"lr": 0.25}}}},
        "evaluate@policy": {
            "cmd": "",
            "deps": lock_form([models], file_states([models], root)),
            "params": knobs,
            "outs": [out],
        },
    }
    (root / "dvc.lock").write_text(yaml.safe_dump({"schema": "2.0", "stages": stages}))


def commit(root):
    git(root, "add", "--all")
    git(root, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--message", "m")


def head_of(card):
    return yaml.safe_load(card.split("---")[1])


def test_it_has_figures_commit_knobs_and_data(root):
    card = model_card(root, "policy", licence="mit")
    assert head_of(card)["license"] == "mit"
    assert "| held out | 40 | 80.0 % (75.0 … 85.0 %) | 90.0 % (85.0 … 95.0 %) | 65.6 % |" in card
    assert "| held out, in other words | 40 | 35.0 %" in card
    assert "Failures: 3 wrong_market, 1 wrong_value." in card
    assert f"`{git(root, 'rev-parse', 'HEAD')}`" in card
    assert "train_policy:\n  lr: 0.25" in card
    assert "- `data/raw/tasks.parquet` 0123" in card


def test_what_is_edited_is_said(root):
    (root / "params.yaml").write_text("seed: 4")
    assert "with edits of params.yaml`" in model_card(root, "policy", licence=None)


@pytest.mark.parametrize(
    ("card", "licence"),
    [("---\nlicense: apache-2.0\n---\ntext", "apache-2.0"), ("no head", "unknown"), (None, "unknown")],
)
def test_the_licence_is_that_of_the_base_models_card(root, card, licence):
    (root / "base").mkdir()
    if card:
        (root / "base" / "README.md").write_text(card)
    write_lock(root, MODEL | {"type": "pretrained", "name": "base"})
    head = head_of(model_card(root, "policy", licence=None))
    assert head["license"] == licence
    assert "base_model" not in head, "a folder of this machine is no name on the hub"


def test_a_model_of_the_hub_is_named_with_its_revision(root):
    write_lock(root, MODEL | {"type": "pretrained", "name": "Qwen/Q", "revision": "v1"})
    card = model_card(root, "policy", licence=None)
    assert head_of(card)["base_model"] == "Qwen/Q"
    assert "`Qwen/Q` (revision v1)" in card


def test_another_model_than_the_one_evaluated_has_no_card(root):
    (root / "data" / "models" / "policy" / "model.safetensors").write_bytes(b"other weights")
    with pytest.raises(DataError, match="data/models/policy is not the model that was evaluated"):
        model_card(root, "policy", licence=None)


def test_a_clone_has_figures_and_no_model(root):
    shutil.rmtree(root / "data" / "models")
    with pytest.raises(ConfigurationError, match="`dvc repro evaluate@policy` makes it"):
        model_card(root, "policy", licence=None)


def test_figures_that_were_edited_have_no_card(root):
    (root / "reports" / "evaluate" / "policy.json").write_text(json.dumps(evaluation(0.95)))
    with pytest.raises(DataError, match="is not the one that"):
        model_card(root, "policy", licence=None)


@pytest.mark.parametrize("name", ["sft", "reward", "../policy"])
def test_what_was_not_evaluated_is_refused(root, name):
    with pytest.raises(ConfigurationError, match=f"data/models/{name} has no evaluation in dvc.lock"):
        model_card(root, name, licence=None)
