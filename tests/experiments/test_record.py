"""Records of experiments: read from a tree, kept, and held against today's knobs."""

import json
import subprocess
from pathlib import Path

import pytest

from posttrain.experiments.plan import Plan, Variant
from posttrain.experiments.record import (
    code_digest,
    of_today,
    read_arm,
    read_arms,
    record_file,
    training_of,
    write_arms,
)
from posttrain.report.arms import Arm, setting_digest
from posttrain.report.knobs import parse_knobs
from posttrain.report.run_reader import Measure
from posttrain.runtime.exits import DataError
from tests.report.example import evaluation, task_record

DVC_YAML = """
stages:
  train:
    cmd: python -m posttrain.provenance.run_stage train
    deps: [stages/train.py, params.yaml, data/rows, data/earlier_run]
    outs: [data/model]
  report:
    cmd: python -m posttrain.provenance.run_stage report
    deps: [stages/report.py, data/model]
    outs: [reports/index.html]
"""
LOCK = """
schema: '2.0'
stages:
  train_sft:
    cmd: python -m posttrain.provenance.run_stage train_sft
    outs:
    - path: data/models/sft
      hash: md5
      md5: 0123456789abcdef0123456789abcdef.dir
      size: 1
      nfiles: 1
"""
PARAMS = """
seed: 1
train_policy: {algorithm: {type: online, group_size: 4}, lr: 2.0e-3}
report: {num_failures_shown: 3}
"""
STEP = {"groups_played": 2, "lost": 0.0, "length": 10.0, "frac_tokens_nonzero_advantage": 0.5, "kl": 0.1}
PLAN = Plan.model_validate(
    {
        "name": "hard",
        "overrides": [{"name": "grpo", "set": {"train_policy.lr": 4.0e-3}}],
        "targets": ["evaluate@policy"],
    }
)
VARIANT = Variant("hard-grpo-seed1", {"train_policy.lr": 4.0e-3, "seed": 1}, "grpo")


def commit(root: Path) -> None:
    subprocess.run(["git", "add", "--all"], cwd=root, check=True)
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--message", "m"]
    subprocess.run(command, cwd=root, check=True)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """In which a policy was trained and evaluated on six tasks, of which it won three and two of
    these strictly."""
    plays = [task_record(f"t{index}", failure=None if index < 3 else "wrong_value") for index in range(6)]
    plays = [
        {**one, "strict_success": index < 2, "samples": [1, 0, 0, index]} for index, one in enumerate(plays[:2])
    ] + [{**one, "strict_success": False} for one in plays[2:]]
    files = {
        "dvc.yaml": DVC_YAML,
        "dvc.lock": LOCK.lstrip(),
        "params.yaml": PARAMS,
        "stages/train.py": "TRAIN = 1",
        "stages/report.py": "REPORT = 1",
        "reports/train_policy/metrics.jsonl": "".join(json.dumps({"step": step, **STEP}) + "\n" for step in (1, 2)),
        "reports/evaluate/policy.json": json.dumps(evaluation(0.5)),
        "reports/evaluate/policy.tasks.jsonl": "".join(json.dumps(one) + "\n" for one in plays),
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    commit(tmp_path)
    return tmp_path


def test_by_hand():
    """Two groups of 4 with 10 tokens each, 80; three with 20, of which a quarter was lost, 180."""
    found = training_of(
        [
            {"step": 0, "dev_success": 0.1},
            {"step": 1, **STEP},
            {"step": 2, "groups_played": 3, "lost": 0.25, "length": 20.0, "kl": 0.3, "dev_success": 0.4},
        ],
        group_size=4,
    )
    assert (found.steps, found.groups, found.rollouts, found.generated_tokens) == (2, 5, 20, 260)
    assert found.means == {"frac_tokens_nonzero_advantage": 0.5, "kl": 0.2}
    assert (found.dev_first, found.dev_last) == ({"dev_success": 0.1}, {"dev_success": 0.4})


def test_rounds_of_rejection_sampling_count_with_the_online_phase_behind_them():
    """Two rounds of 30 tokens and 5 episodes each, 2 steps behind each, then a group of 4."""
    rounds = [{"step": 2 * number, "played": 5 * number + 5, "generated_tokens": 30 * number + 30} for number in (0, 1)]
    learnt = [{"step": step, "loss": 1.0} for step in (1, 2, 3, 4)]
    online = {"step": 5, "groups_played": 1, "lost": 0.0, "length": 10.0}
    found = training_of([*rounds, *learnt, online], group_size=4)
    assert (found.steps, found.groups, found.rollouts, found.generated_tokens) == (5, 1, 14, 100)


def test_the_last_steps_are_twenty():
    found = training_of([{"step": step, **STEP, "kl": float(step <= 5)} for step in range(1, 31)], group_size=4)
    assert (found.means["kl"], found.last["kl"]) == (pytest.approx(5 / 30, abs=1e-6), 0.0)


def test_a_training_without_groups_has_no_figures():
    with pytest.raises(DataError, match="no step in which episodes were played"):
        training_of([{"step": 1, "loss": 0.5}], group_size=4)


def test_a_tree_is_read_with_the_model_that_it_began_from(tree):
    found = read_arm(tree, PLAN, VARIANT)
    policy = found.policies["policy"]
    assert (policy.won, policy.strict_won, found.sft) == ("111000", "110000", "0123456789abcdef0123456789abcdef.dir")
    assert sum(policy.outcomes(Measure.STRICT).values()) == 2
    assert sorted(policy.outcomes(Measure.SAMPLED).values()) == [0.25, *[0.5] * 5]
    assert found.training.generated_tokens == 160
    assert (found.override, found.seed, found.overrides) == ("grpo", 1, {"train_policy.lr": 4.0e-3})
    assert found.setting == setting_digest(parse_knobs(PARAMS.encode()))


@pytest.mark.parametrize(
    ("file", "text", "reason"),
    [
        ("dvc.lock", "", "which SFT model"),
        ("reports/evaluate/policy.tasks.jsonl", "", "no held-out task"),
        ("reports/train_policy/metrics.jsonl", "{", "damaged"),
        ("params.yaml", "[]", "no mapping"),
    ],
)
def test_a_tree_that_does_not_say_is_an_error_and_no_figure(tree, file, text, reason):
    (tree / file).write_text(text)
    with pytest.raises(DataError, match=reason):
        read_arm(tree, PLAN, VARIANT)


def test_what_is_written_is_read_again(tree):
    file = record_file(tree, PLAN)
    assert read_arms(file) == {}
    records = {VARIANT.name: read_arm(tree, PLAN, VARIANT)}
    write_arms(file, records)
    assert read_arms(file) == records


@pytest.mark.parametrize("text", ["", "[]", '{"arms": {"a": {"override": "grpo"}}}', '{"arms": []}'])
def test_a_damaged_record_is_named(tmp_path, text):
    file = tmp_path / "hard.json"
    file.write_text(text)
    with pytest.raises(DataError, match=r"hard\.json holds no records"):
        read_arms(file)


def test_records_of_other_knobs_than_todays_are_told_apart_whatever_the_seed(repository):
    params = (repository / "params.yaml").read_text(encoding="utf-8")
    today = setting_digest(parse_knobs(params.replace("  lr: 2.0e-3 ", "  lr: 4.0e-3 ").encode()))
    arm = Arm(override="grpo", seed=1, overrides={}, setting=today, code="c", sft="s", commit="abc", policies={})
    known = {
        "now": arm,
        "other seed": arm.model_copy(update={"seed": 2}),
        "older": arm.model_copy(update={"setting": "older"}),
        "gone": arm.model_copy(update={"override": "gone"}),
    }
    assert list(of_today(PLAN, known, params=params)) == ["now", "other seed"]


def test_code_is_what_a_stage_before_the_report_runs(tree):
    before = code_digest(tree)
    for name, is_code in (
        ("stages/report.py", False),
        ("params.yaml", False),
        ("README.md", False),
        ("data/earlier_run/policy.dvc", False),
        ("stages/train.py", True),
    ):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text("EDITED = 1")
        assert code_digest(tree) == before, "the last commit counts"
        commit(tree)
        assert (code_digest(tree) != before) == is_code, name
