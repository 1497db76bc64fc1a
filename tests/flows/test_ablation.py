"""The flow runs what the local runner does, and writes the same record."""

import subprocess
from pathlib import Path

import pytest

from benchmarks.arms import make_small_copy
from flows.ablation import chosen_arms
from posttrain.ablation.plan import arms, read_study
from posttrain.exits import ConfigurationError
from posttrain.pipeline.git import file_at, git


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


def test_a_wrong_plan_is_refused_and_nothing_was_made(root):
    for regime, methods, seeds in (("hrad", ["grpo"], [1]), ("hard", ["gpro"], [1]), ("hard", ["grpo"], [-1])):
        with pytest.raises(ConfigurationError):
            chosen_arms(root, regime, methods, seeds)
    assert git(root, "branch", "--list", "exp/*") == ""
