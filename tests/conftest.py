"""What several test folders share: where the repository and the real public data are."""

import os
from pathlib import Path

import pytest

from posttrain.provenance.threads import free_bits_of_threads

os.environ.setdefault("POSTTRAIN_THREADS", "1")  # tests run side by side; stages would each take the cores that are idle when they start
free_bits_of_threads()  # the first product of a test process may not be a stage's
os.environ["DVC_NO_ANALYTICS"] = "1"  # toy trees are initialised without our .dvc/config

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def repository() -> Path:
    return REPOSITORY


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real public trajectories and tool catalogues, kept beside the checkout and not in it."""
    folder = REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"the real trajectories are not at {folder}; this test reads them in place")
    return folder
