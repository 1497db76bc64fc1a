"""`kill -9` of the trainer, of `dvc`, and of both: the next `dvc repro` goes on from the last good
checkpoint and reaches the same bytes."""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.arms import environment_of
from tests.waiting import wait_until

pytestmark = [pytest.mark.smoke, pytest.mark.needs_killed]

TRAINING = {
    "train_sft.max_steps": 240,
    "train_sft.eval_every_steps": 20,
    "train_sft.early_stopping_patience": 99,
}
AGAIN = (
    "repro",
    "--force",
    "--single-item",
    "train_sft",
)  # by force: DVC's run cache would give back the first result without running


@pytest.fixture(scope="module")
def trained(make_copy: Callable[..., Path], dvc: Callable[..., Any]) -> tuple[Path, str]:
    """A copy in which nothing was killed, and its `dvc.lock`."""
    root = make_copy(TRAINING)
    result = dvc(root, "repro", "train_sft")
    assert result.returncode == 0, result.stderr[-4000:]
    return root, (root / "dvc.lock").read_text()


def start_over(root: Path) -> tuple[subprocess.Popen[str], int]:
    """Train from nothing until the first sealed checkpoint; gives the running `dvc` and the
    trainer's process id."""
    shutil.rmtree(root / ".posttrain" / "checkpoints")
    environment = {**environment_of(root), "WANDB_MODE": "disabled"}
    process = subprocess.Popen(
        ["dvc", *AGAIN], cwd=root, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True
    )
    is_sealed = lambda: any(root.glob(".posttrain/checkpoints/train_sft/*/checkpoint-*/COMPLETE"))  # noqa: E731
    wait_until(is_sealed, limit_s=240.0, what="the first checkpoint")
    return process, int((root / ".posttrain" / "locks" / "train_sft.lock").read_text())


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def first_step_of(output: str) -> int:
    steps = re.findall(r"\[train_sft\] (\d+)/240", output)
    return int(steps[0]) if steps else 240


@pytest.mark.parametrize("is_dvc_killed", [False, True])
def test_a_killed_trainer_goes_on_from_its_checkpoint(
    trained: tuple[Path, str], dvc: Callable[..., Any], is_dvc_killed: bool
):
    root, lock = trained
    process, trainer = start_over(root)
    if is_dvc_killed:
        process.kill()
    os.kill(trainer, signal.SIGKILL)
    assert process.wait(timeout=60) != 0
    wait_until(lambda: not is_alive(trainer))
    result = dvc(root, *AGAIN)
    assert result.returncode == 0, result.stderr[-4000:]
    assert first_step_of(result.stderr) > 20
    assert (root / "dvc.lock").read_text() == lock


def test_a_trainer_that_outlives_dvc_is_not_joined_by_a_second(trained: tuple[Path, str], dvc: Callable[..., Any]):
    root, lock = trained
    process, trainer = start_over(root)
    process.kill()
    process.wait(timeout=60)
    os.kill(trainer, signal.SIGSTOP)  # it neither ends nor loses its lock while the second one tries
    try:
        refused = dvc(root, *AGAIN)
    finally:
        os.kill(trainer, signal.SIGCONT)
    assert refused.returncode != 0
    assert f"process {trainer} is still running this stage" in refused.stderr
    wait_until(lambda: not is_alive(trainer))
    assert dvc(root, *AGAIN).returncode == 0
    assert (root / "dvc.lock").read_text() == lock
