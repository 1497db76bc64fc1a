"""Rounds of self-improvement on a small copy of the graph: a round begins from what the one before
left, and a run that is killed in any of its phases reaches the same bytes."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import yaml

from benchmarks.arms import environment_of, make_small_copy
from posttrain.pipeline.git import git
from posttrain.provenance.lockfile import lock_entries

pytestmark = [pytest.mark.needs_prefect, pytest.mark.xdist_group("evolve")]
ROUNDS = {
    "name": "small",
    "rounds": 2,
    "patience": 2,
    "seeds": [1],
    "round": {
        "train_policy.replay_buffer": {"size": 24, "keep": "uniform"},
        "train_policy.algorithm": {
            "type": "rejection_sampling",
            "rounds": 1,
            "max_generated_tokens": 600,
            "tasks_per_step": 4,
            "samples_per_task": 1,
            "temperature": 1.0,
            "accept": {"type": "by_reward", "temperature": 0.2},
            "balance": "episode",
            "per_task": "all",
            "restart": True,
            "replay_frac": 0.0,
            "max_steps": 12,
            "batch_size": 4,
            "lr": 1.0e-3,
            "lr_warmup_frac": 0.0,
            "num_dev_tasks": 4,
        },
    },
}


class Small:
    """A copy of the tree, with Prefect's database and DVC's cache of its own."""

    def __init__(self, folder: Path) -> None:
        self.root = make_small_copy(folder / "copy")
        self.file = folder / "rounds.yaml"
        self.file.write_text(yaml.safe_dump(ROUNDS))
        for key in ("user.name", "user.email"):
            subprocess.run(["git", "config", key, "a@b"], cwd=self.root, check=True)

    def start(self) -> subprocess.Popen[str]:
        environment = {
            **environment_of(self.root),
            "PREFECT_HOME": str(self.root.parent / "prefect"),
            "POSTTRAIN_THREADS": "1",
            "WANDB_MODE": "disabled",
        }
        command = ["python", "-m", "flows.evolve", str(self.file)]
        how = {"cwd": self.root, "env": environment, "text": True, "start_new_session": True}
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **how)

    def run(self) -> None:
        """Up to the end; once more where Prefect lost a task, which stays pending."""
        for _try in range(2):
            process = self.start()
            said = process.communicate()[0]
            if "neither ran nor failed" not in said:
                break
        assert process.returncode == 0, said

    def tree(self, number: int) -> Path:
        return self.root / f".posttrain/experiments/small-round{number}-seed1"

    def outs(self) -> list[dict[str, str]]:
        return [
            {out["path"]: out["md5"] for entry in lock_entries(self.tree(number)).values() for out in entry["outs"]}
            for number in (1, 2)
        ]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    small = Small(tmp_path_factory.mktemp("undisturbed"))
    small.run()
    return small


def test_a_round_begins_from_the_policy_and_the_episodes_of_the_one_before(undisturbed):
    first, second = undisturbed.outs()
    assert first["data/models/sft"] == second["data/models/sft"]
    assert first["data/models/policy"] != second["data/models/policy"]
    earlier = [
        yaml.safe_load((undisturbed.tree(2) / f"data/earlier_run/{name}.dvc").read_text())["outs"][0]["md5"]
        for name in ("policy", "episodes.parquet")
    ]
    assert earlier == [first["data/models/policy"], first["data/experience/episodes.parquet"]]
    assert git(undisturbed.tree(2), "status", "--porcelain") == ""
    table = (undisturbed.root / "reports/experiments/small.md").read_text()
    assert "## Rounds" in table
    assert table.count("| 2 | 1 |") == 1


@pytest.mark.parametrize(("number", "stage"), [(1, "train_sft"), (1, "evaluate@policy"), (2, "train_policy")])
def test_a_run_killed_in_any_phase_reaches_the_same_bytes(number, stage, undisturbed, tmp_path):
    small = Small(tmp_path)
    process = small.start()
    deadline_s = time.monotonic() + 600
    while process.poll() is None and time.monotonic() < deadline_s:
        is_there = lock_entries(small.tree(number)) or number == 1
        if is_there and any((small.root / ".posttrain/snapshots").glob(f"{stage}-*")):
            break
        time.sleep(0.1)
    assert process.poll() is None, process.communicate()[0]
    time.sleep(2)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    small.run()
    assert small.outs() == undisturbed.outs()
