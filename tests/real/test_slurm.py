"""A real SLURM on this machine (`make test-slurm`): the contract of every pool, and what only this one can be asked."""

import subprocess
import time
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from posttrain.dispatch.contract import JobSpec, JobState
from posttrain.dispatch.slurm import SlurmPool
from tests.conftest import REPOSITORY
from tests.dispatch.pool_contract import PoolContract

CLUSTER = REPOSITORY / "infra" / "slurm" / "dev_cluster.sh"
FORGET_S = 90  # the controller forgets ended jobs once a minute
CHECKPOINT = (
    "import pathlib, signal, sys, time\n"
    "def checkpoint(*_):\n    pathlib.Path('checkpoint').write_text('kept'); sys.exit(75)\n"
    "signal.signal(signal.SIGUSR1, checkpoint)\n"
    "if pathlib.Path('checkpoint').exists(): sys.exit(0)\n"
    "pathlib.Path('up').touch(); time.sleep(600)"
)


def slurm(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module", autouse=True)
def _cluster():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", slurm(str(CLUSTER), "conf").strip())
        yield


class TestSlurmPool(PoolContract):
    patience_s = 60.0

    @pytest.fixture
    def folder(self, tmp_path):
        folder = tmp_path / "a %j folder;\n$(touch pwned) \\ 'x'"
        folder.mkdir()
        return folder

    @pytest.fixture
    def new_pool(self, tmp_path):
        return SlurmPool(tmp_path / "state")

    def job(self, folder, script, *arguments, name, **resources) -> JobSpec:
        """The accounting remembers earlier runs' names."""
        resources = {"memory_gb": 0.5} | resources
        return replace(super().job(folder, script, *arguments, name=name, **resources), name=f"{name}-{uuid.uuid4().hex[:12]}")

    def bring_its_limit_near(self, pool, job_id):
        self.wait(pool, job_id, JobState.RUNNING)
        slurm("scontrol", "update", f"JobId={job_id}", "EndTime=now")

    def wait_for_file(self, path: Path) -> None:
        end = time.monotonic() + self.patience_s
        while not path.exists():
            assert time.monotonic() < end, f"no {path}"
            time.sleep(0.05)
