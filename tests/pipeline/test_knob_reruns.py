"""An edit of a knob runs the stages that read it and what their results change, and no other.

The real `dvc.yaml` and `params.yaml`; each command is replaced by one that writes a hash of what
the stage declares, but for the stages that a knob may ask for nothing, which run as they are.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from posttrain.pipeline.plan import read_plan

pytestmark = [pytest.mark.needs_provenance, pytest.mark.xdist_group("knob_reruns")]  # one tree for all
REPOSITORY = Path(__file__).resolve().parents[2]
KNOBS: dict[str, Any] = yaml.safe_load((REPOSITORY / "params.yaml").read_text(encoding="utf-8"))
STAGE = """
import hashlib, json, pathlib, sys
from types import SimpleNamespace
import yaml
from posttrain.config.params import parse_params
from stages.import_preferences import import_preferences
from stages.select_edits import select_edits
from stages.select_policy_inputs import select_policy_inputs
from stages.train_process_model import train_process_model
from stages.train_retriever import train_retriever

name, stages = sys.argv[1], pathlib.Path(__file__).with_name("stages.json")
stage, knobs, read = json.loads(stages.read_text())[name], yaml.safe_load(open("params.yaml")), []
asked = (select_edits, import_preferences, select_policy_inputs, train_process_model, train_retriever)
own = {one.__name__: one for one in asked}
if name in own:
    own[name](SimpleNamespace(params=parse_params(knobs, source="params.yaml"), is_first=True))
    sys.exit()
for key in stage["params"]:
    value = knobs
    for part in key.split("."):
        value = value[part]
    read.append(value)
for dep in map(pathlib.Path, stage["deps"]):
    read += [file.read_bytes().hex() for file in sorted([dep, *dep.rglob("*")]) if file.is_file()]
text = "checked" if name == "check_params" else hashlib.sha256(json.dumps(read).encode()).hexdigest()
for out in map(pathlib.Path, stage["outs"]):
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text)
"""
EVALUATIONS = {f"evaluate@{key}" for key in ("teacher", "base", "sft", "policy")}
POLICY = {"train_policy", "evaluate@policy", "report"}
PAIRS = {"sample_preferences", "train_reward_model", "select_policy_inputs", "report"}
PROCESS = {"train_process_model", "select_policy_inputs", "report"}
SFT = {"train_sft", "evaluate@sft", "train_process_model"} | PAIRS | POLICY
RESAMPLED = {"resample_data"} | SFT
BASE = {"prepare_model", "evaluate@base"} | RESAMPLED
VALIDATED = {"validate_data"} | BASE
DRAWN = {"generate_data"} | VALIDATED | EVALUATIONS
ALL = {"train_retriever"} | DRAWN
# the stages that an edit of a knob reaches besides `check_params`, by the longest prefix of its key
RUN_AGAIN = {
    "seed": ALL,
    "world": ALL,
    "agent": ALL,
    "model": BASE,  # the prepared model is another one
    "model.dtype": BASE | EVALUATIONS,  # a knob is declared for all items of a stage
    "reward": EVALUATIONS | PAIRS | PROCESS | POLICY,
    "train_retriever": ALL,  # nobody asked for it, which the plan cannot know
    "generate_data": DRAWN,
    "validate_data": VALIDATED,
    "validate_data.drift": {"report"},
    "validate_data.max_quarantine_frac": DRAWN | {"import_preferences"},
    "prepare_model": BASE,
    "resample_data": RESAMPLED,
    "train_sft": SFT,
    "train_sft.edit_copies": SFT | {"select_edits"},
    "sample_preferences": PAIRS,
    "sample_preferences.source": PAIRS | PROCESS | {"import_preferences"},
    "sample_preferences.pairs": PAIRS | PROCESS | {"import_preferences"},
    "sample_preferences.edit_pairs": SFT | {"select_edits"},  # nobody knows yet that SFT's rows stay
    "train_reward_model": {"train_reward_model", "select_policy_inputs", "report"},
    "train_process_model": PROCESS,  # nobody asked for it, which the plan cannot know
    "train_policy": POLICY,
    "train_policy.begin_with": POLICY | PROCESS,
    "train_policy.algorithm": POLICY | PROCESS,
    "train_policy.reward_model_weight": POLICY | {"select_policy_inputs"},
    "train_policy.start": POLICY | {"select_policy_inputs"},
    "train_policy.replay_buffer": POLICY | {"select_policy_inputs"},
    "evaluate": EVALUATIONS | {"report"},
    "report": {"report"},
}


def leaves(section: Any, key: str = "") -> Iterator[str]:
    if isinstance(section, dict) and section:
        for name, value in section.items():
            yield from leaves(value, f"{key}.{name}" if key else name)
    else:
        yield key


def edited(key: str, value: Any) -> str:
    """`params.yaml` with another value of one knob."""
    knobs = yaml.safe_load(yaml.safe_dump(KNOBS))
    *path, last = key.split(".")
    section = knobs
    for name in path:
        section = section[name]
    section[last] = value
    return yaml.safe_dump(knobs, sort_keys=False)


def other(key: str) -> Any:
    value: Any = KNOBS
    for name in key.split("."):
        value = value[name]
    if key == "train_policy.algorithm.type":
        return "dpo"
    return value + 1 if isinstance(value, int | float) and not isinstance(value, bool) else "another"


def dvc(root: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "dvc", *arguments]
    # not the working folder's `stages`, which an empty entry of PYTHONPATH would name
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree in which every stage has run once."""
    root, beside = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("beside")
    stages, declared = yaml.safe_load((REPOSITORY / "dvc.yaml").read_text(encoding="utf-8"))["stages"], {}
    for name, stage in stages.items():
        body, items = stage.get("do", stage), stage.get("foreach", {"": ""})
        outs = [
            path
            for kind in ("outs", "metrics")
            for out in body.get(kind, [])
            for path in (out if isinstance(out, dict) else [out])
        ]
        body["cmd"] = f"{sys.executable} {beside / 'stage.py'} {name}" + "@${key}" * ("do" in stage)
        for key, item in items.items():
            declared[f"{name}@{key}".rstrip("@")] = {
                "deps": [dep.replace("${item}", item) for dep in body["deps"]],
                "outs": [out.replace("${key}", key) for out in outs],
                "params": body.get("params", []),
            }
    made = {out for stage in declared.values() for out in stage["outs"]}
    for path in {dep for stage in declared.values() for dep in stage["deps"]} - made:
        file = root / path if Path(path).suffix else root / path / "file"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(path)
    (root / "dvc.yaml").write_text(yaml.safe_dump({"stages": stages}, sort_keys=False))
    (root / "params.yaml").write_text(yaml.safe_dump(KNOBS, sort_keys=False))
    (beside / "stages.json").write_text(json.dumps(declared))
    (beside / "stage.py").write_text(STAGE)
    for command in (["init", "--no-scm", "-q"], ["repro", "-q"]):
        dvc(root, *command)
    return root


@pytest.mark.parametrize("section", KNOBS)
def test_the_plan_after_an_edit_of_any_knob_names_the_stages_that_it_reaches(tree: Path, section: str):
    found, expected = {}, {}
    for key in leaves(KNOBS[section], section):
        (tree / "params.yaml").write_text(edited(key, other(key)))
        found[key] = {stage.name for stage in read_plan(tree) if stage.fate != "current"}
        prefix = max((known for known in RUN_AGAIN if f"{key}.".startswith(f"{known}.")), key=len)
        expected[key] = {"check_params", *RUN_AGAIN[prefix]}
    (tree / "params.yaml").write_text(yaml.safe_dump(KNOBS, sort_keys=False))
    assert found == expected


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("train_reward_model.lr", 0.5),
        ("sample_preferences.temperature", 0.5),
        ("evaluate.num_samples", 5),
        ("train_policy.reward_model_weight", 0.5),
        ("train_sft.lr", 0.5),
    ],
)
def test_dvc_runs_what_the_plan_has_named(tree: Path, tmp_path: Path, key: str, value: float):
    root = tmp_path / "tree"
    shutil.copytree(tree, root)
    (root / "params.yaml").write_text(edited(key, value))
    ran = set(re.findall(r"Running stage '(.*)':", dvc(root, "repro")))
    prefix = max((known for known in RUN_AGAIN if f"{key}.".startswith(f"{known}.")), key=len)
    assert ran == {"check_params", *RUN_AGAIN[prefix]}


def test_a_reward_model_with_a_weight_is_read_by_the_policy(tree: Path, tmp_path: Path):
    root = tmp_path / "tree"
    shutil.copytree(tree, root)
    (root / "params.yaml").write_text(edited("train_policy.reward_model_weight", 0.5))
    dvc(root, "repro", "-q")
    knobs = yaml.safe_load((root / "params.yaml").read_text())
    knobs["train_reward_model"]["lr"] = 0.5
    (root / "params.yaml").write_text(yaml.safe_dump(knobs))
    assert "train_policy" in re.findall(r"Running stage '(.*)':", dvc(root, "repro"))
