"""The flow runs what the local runner does, and writes the same record."""

import json
import subprocess
from pathlib import Path

import pytest

from benchmarks.arms import make_small_copy
from flows.ablation import chosen_arms, record_arms
from flows.experiments import folder_of
from posttrain.experiments.arms import arms, read_study
from posttrain.experiments.branches import open_worktree
from posttrain.experiments.record import read_arms, record_file
from posttrain.pipeline.git import file_at, git
from posttrain.runtime.exits import ConfigurationError
from tests.experiments.test_record import LOCK
from tests.report.example import task_record


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = make_small_copy(tmp_path_factory.mktemp("ablation"), {"world.num_rl_tasks": 128})
    for key in ("user.name", "user.email"):
        subprocess.run(["git", "config", key, "a@b"], cwd=copy, check=True)
    return copy


def test_the_flow_runs_the_arms_of_the_local_runner(root):
    study, chosen = chosen_arms(root, "hard", ["grpo", "ngrpo"], [1, 2])
    assert chosen == arms(read_study(root), "hard", ["grpo", "ngrpo"], [1, 2], file_at(root, "HEAD", "params.yaml"))
    _, by_default = chosen_arms(root, "", [], [])
    laptop = study.laptop
    assert {(arm.regime, arm.method, arm.seed) for arm in by_default} == {
        (laptop.regime, method, seed) for method in laptop.methods for seed in laptop.seeds
    }


def test_what_is_in_the_worktrees_comes_on_record_and_into_a_table_where_the_baseline_has_run(root):
    study, [grpo, rloo] = chosen_arms(root, "hard", ["grpo", "rloo"], [1])
    for arm in (rloo, grpo):
        folder = folder_of(root, arm.variant)
        open_worktree(root, arm.variant, folder)
        plays = [task_record(f"t{index}", failure=None if index < 3 else "wrong_value") for index in range(8)]
        step = {"step": 1, "groups_played": 2, "lost": 0.0, "length": 10.0}
        for name, lines in (("evaluate/policy.tasks.jsonl", plays), ("train_policy/metrics.jsonl", [step])):
            (folder / "reports" / name).parent.mkdir(parents=True, exist_ok=True)
            text = "".join(json.dumps({"strict_success": True, **line}) + "\n" for line in lines)
            (folder / "reports" / name).write_text(text, encoding="utf-8")
        (folder / "dvc.lock").write_text(LOCK.lstrip(), encoding="utf-8")
        text = record_arms(root, study, [arm])
        assert text.startswith("no run of grpo" if arm is rloo else "# Methods in the regime hard")
    assert set(read_arms(record_file(root, "hard"))) == {grpo.variant.name, rloo.variant.name}
    assert "`rloo`" in record_file(root, "hard").with_suffix(".md").read_text(encoding="utf-8")


def test_a_wrong_plan_is_refused_and_nothing_was_made(root):
    for regime, methods, seeds in (("hrad", ["grpo"], [1]), ("hard", ["gpro"], [1]), ("hard", ["grpo"], [-1])):
        with pytest.raises(ConfigurationError):
            chosen_arms(root, regime, methods, seeds)
    assert git(root, "branch", "--list", "exp/hrad*", "exp/*gpro*", "exp/*-1") == ""
