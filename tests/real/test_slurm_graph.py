"""The flow's contract on a real SLURM (`make test NEEDS=slurm`), and a training that is preempted
there."""

import sys
import time

import pytest

from posttrain.dispatch.backend import JobSpec, JobState, Resources
from posttrain.dispatch.backends.slurm import SlurmBackend
from posttrain.dispatch.settings import DispatchSettings
from tests.real.flow_contract import FlowContract
from tests.real.preempted import LAUNCH, check_preempted_training, kill_second_node, launch_here
from tests.real.test_slurm import WAIT_FOR_GO, named
from tests.smoke.conftest import dvc, make_copy  # noqa: F401  # fixtures
from tests.tracking.toy_pipeline import ENVIRONMENT, check_pipeline, make_experiment, run_pipeline

pytest_plugins = ["tests.real.slurm_fixtures"]
pytestmark = [pytest.mark.needs_slurm, pytest.mark.usefixtures("_slurm")]


def on_slurm(*options: str, memory_gb: float = 0.5, **reserved: object) -> DispatchSettings:
    resources = {"default": {"gpus": 1, "memory_gb": memory_gb, **reserved}}
    return DispatchSettings.model_validate(
        {"target": "slurm", "targets": {"slurm": {"type": "slurm", "options": options}}, "resources": resources}
    )


class TestSlurm(FlowContract):
    waits_for = "RESOURCES"  # SLURM's reason

    @pytest.fixture
    def settings(self):
        return on_slurm()


def test_a_job_and_a_stage_beside_it_are_one_group_in_weights_and_biases(tmp_path):
    worktree = make_experiment(tmp_path)
    targets = {
        "slurm": {"type": "slurm", "environment": ENVIRONMENT},
        "here": {"type": "local", "num_gpus": 0, "environment": ENVIRONMENT},
    }
    resources = {"default": {"memory_gb": 0.5}, "train_sft": {"gpus": 1}}
    settings = {"target": "slurm", "beside": "here", "targets": targets, "resources": resources}
    check_pipeline(worktree, run_pipeline(worktree, DispatchSettings.model_validate(settings)))


def test_a_training_that_is_preempted_on_the_spot_partition_ends_with_the_same_bytes(make_copy, dvc, tmp_path):  # noqa: F811
    backend = SlurmBackend(tmp_path / "state")

    def preempt(job_id: str) -> None:
        urgent = [
            JobSpec(
                named("urgent"),
                (sys.executable, "-c", WAIT_FOR_GO),
                tmp_path,
                tmp_path / "log",
                Resources(gpus=1, memory_gb=0.2),
            )
            for _ in range(2)
        ]
        ids = [backend.submit(spec) for spec in urgent]
        end = time.monotonic() + 120
        while not backend.status(job_id).is_over or any(
            backend.status(one).state is not JobState.RUNNING for one in ids
        ):
            assert time.monotonic() < end
            time.sleep(0.2)
        (tmp_path / "go").touch()

    check_preempted_training(make_copy, dvc, lambda root: on_slurm("--partition=spot", memory_gb=2), preempt)


def test_a_training_on_two_nodes_of_which_one_dies_ends_with_the_bytes_of_two_processes_on_one(
    make_copy,  # noqa: F811
    dvc,  # noqa: F811
    monkeypatch,
):
    launch_here(monkeypatch)
    settings = on_slurm(memory_gb=2, nodes=2, launch=LAUNCH)
    check_preempted_training(make_copy, dvc, lambda root: settings, kill_second_node, max_steps=100)
