"""Fixtures of several test folders: where the repository and the real public data are."""

import gc
import os
import sys
from pathlib import Path

import pytest

from posttrain.runtime.threads import free_bits_of_threads
from tests.forked import start_server

os.environ.setdefault(
    "POSTTRAIN_THREADS", "1"
)  # tests run side by side; stages would each take the cores that are idle when they start
free_bits_of_threads()  # the first product of a test process may not be a stage's
# stages start `python` by name, and `.venv/bin/pytest` activates nothing
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
os.environ.pop("POSTTRAIN_TRACES", None)  # a store of the user's is none of the tests'
os.environ["DVC_NO_ANALYTICS"] = "1"  # toy trees are initialised without our .dvc/config

REPOSITORY = Path(__file__).resolve().parents[1]
# of each test that was collected its file, and its marks `needs_…`
NEEDS = pytest.StashKey[list[tuple[str, list[str]]]]()


def pytest_collection() -> None:
    """Collects without the garbage collector: it would go through all that is imported a dozen
    times, which takes as long as the imports."""
    gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Leaves out of every later collection what was imported, for it lives to the end."""
    gc.freeze()
    gc.enable()
    if not session.config.option.collectonly:
        start_server()


@pytest.hookimpl(tryfirst=True)  # before any is deselected
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tells tests/test_ci.py what there is."""
    marks = ({mark.name for mark in item.iter_markers() if mark.name.startswith("needs_")} for item in items)
    config.stash[NEEDS] = [
        (item.path.relative_to(REPOSITORY).as_posix(), sorted(names)) for item, names in zip(items, marks, strict=True)
    ]


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
