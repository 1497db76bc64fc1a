"""Fixtures of SLURM's suite: commands ask the SLURM of this machine."""

import subprocess
from collections.abc import Iterator

import pytest

from tests.conftest import REPOSITORY

CLUSTER = REPOSITORY / "infra" / "slurm" / "dev_cluster.sh"


@pytest.fixture(scope="module")
def _slurm() -> Iterator[None]:
    conf = subprocess.run([CLUSTER, "conf"], check=True, capture_output=True, text=True).stdout.strip()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", conf)
        yield
