"""A real training, taken off its node in the middle and gone on with: the same bytes as one that
nobody disturbed."""

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from posttrain.dispatch.records import JobRecords
from posttrain.dispatch.settings import DispatchSettings
from posttrain.pipeline.executor import StageExecutor
from posttrain.pipeline.graph import read_graph
from posttrain.provenance.costs import read_costs
from tests.conftest import REPOSITORY
from tests.smoke.test_killed import TRAINING, wait_until

STAGE = "train_sft"
MODULE = "posttrain.pipeline.job.shared_disk"
LAUNCH = "infra/accelerate/ddp.yaml"


def launch_here(patch: pytest.MonkeyPatch) -> None:
    """Have a stage that is run here share its steps between two processes."""
    patch.setenv("POSTTRAIN_LAUNCH", str(REPOSITORY / LAUNCH))
    patch.setenv("POSTTRAIN_PROCESSES", "2")


def kill_second_node(job_id: str) -> None:
    """Kill what the job runs on its second node, which is this machine too."""
    [follower] = [one for one in psutil.process_iter(["cmdline", "environ"]) if is_follower(one.info)]
    follower.kill()


def is_follower(process: dict[str, Any]) -> bool:
    command, environment = process["cmdline"] or [], process["environ"] or {}
    return command[2:4] == ["-m", MODULE] and environment.get("POSTTRAIN_NODE") == "1"


def check_preempted_training(
    make_copy: Callable[..., Path],
    dvc: Callable[..., object],
    settings: Callable[[Path], DispatchSettings],
    preempt: Callable[[str], None],
    *,
    max_steps: int = 300,
) -> None:
    """`settings` are of a tree; `preempt` takes the job of that id off its node."""
    root = make_copy({**TRAINING, "train_sft.max_steps": max_steps})
    assert dvc(root, "repro", STAGE).returncode == 0
    undisturbed = (root / "dvc.lock").read_bytes()

    shutil.rmtree(root / ".dvc/cache/runs")
    shutil.rmtree(root / ".posttrain/checkpoints")
    lock = yaml.safe_load(undisturbed)
    del lock["stages"][STAGE]
    (root / "dvc.lock").write_text(yaml.safe_dump(lock, sort_keys=False))

    node = next(node for node in read_graph(root) if node.name == STAGE)
    told: list[str] = []
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(StageExecutor(root, settings=settings(root)).run, node, told.append)
        sealed = f".posttrain/checkpoints/{STAGE}/*/checkpoint-*/COMPLETE"
        wait_until(lambda: running.done() or any(root.glob(sealed)), limit_s=240, what="the first checkpoint")
        [first] = JobRecords(root / ".posttrain/jobs.db").all()
        preempt(first.job_id)
        outcome = running.result()
    assert (outcome.state, outcome.num_preempted) == ("completed", 1), (outcome, told)
    assert [line for line in told if "goes on from its checkpoint" in line]
    assert (root / "dvc.lock").read_bytes() == undisturbed
    cost = read_costs(root)[-1]
    assert (cost.stage, len(cost.resumed_at), cost.earlier_s > 0) == (STAGE, 1, True)
    assert 0 < cost.resumed_at[0] < max_steps
