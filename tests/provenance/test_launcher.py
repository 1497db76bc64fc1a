"""The runner starts several processes and reads their ends; with real ones:
tests/train/test_processes.py and tests/real."""

import fcntl
import json
from pathlib import Path

import pytest

from posttrain.provenance.launcher import Launch, _conclude, asked_launch
from posttrain.provenance.nodes import OtherNodes
from posttrain.runtime.exits import ConfigurationError, DataError, Interrupted
from posttrain.runtime.worker import WorkerEnd, _write_end, is_alive, read_end, read_pid

TWO = Launch(Path("infra/accelerate/ddp.yaml"), 2)


def begun(folder: Path, *ends: WorkerEnd | None) -> Path:
    """A process for each; None: it left no word."""
    for rank, end in enumerate(ends):
        (folder / f"worker-{rank}.pid").write_text("4194304")
        if end is not None:
            _write_end(folder, rank, end)
    return folder


def end(code: int, at: float = 0.0, *, is_follow_up: bool = False) -> WorkerEnd:
    return WorkerEnd(code, f"message {code}", at, 100.0, is_follow_up)


def test_without_a_file_the_stage_runs_in_its_own_process():
    assert asked_launch({}) is None
    assert asked_launch({"POSTTRAIN_LAUNCH": "", "POSTTRAIN_PROCESSES": "2"}) is None


@pytest.mark.parametrize("name", ["ddp", "fsdp", "fsdp_offload", "zero2"])
def test_the_number_is_the_environments_or_else_the_files(name: str, repository: Path):
    config = repository / "infra" / "accelerate" / f"{name}.yaml"
    assert asked_launch({"POSTTRAIN_LAUNCH": str(config)}) == Launch(config, 2)
    assert asked_launch({"POSTTRAIN_LAUNCH": str(config), "POSTTRAIN_PROCESSES": "8"}) == Launch(config, 8)


@pytest.mark.parametrize("number", ["0", "-1", "two"])
def test_a_wrong_number_is_refused(number: str, repository: Path):
    config = repository / "infra" / "accelerate" / "ddp.yaml"
    with pytest.raises(ConfigurationError, match="not a positive number of processes"):
        asked_launch({"POSTTRAIN_LAUNCH": str(config), "POSTTRAIN_PROCESSES": number})


def test_a_file_that_is_none_of_accelerates_is_refused(tmp_path: Path):
    (tmp_path / "other.yaml").write_text("a: 1\n")
    with pytest.raises(ConfigurationError, match="no configuration of accelerate"):
        asked_launch({"POSTTRAIN_LAUNCH": str(tmp_path / "other.yaml")})


def test_a_good_end_is_that_of_all_and_their_memory_adds_up(tmp_path: Path):
    assert (
        _conclude(TWO, begun(tmp_path, end(0), end(0)), OtherNodes(tmp_path), is_good=True, is_stopped=False) == 200.0
    )


@pytest.mark.parametrize(
    ("ends", "is_stopped", "kind", "message"),
    [
        ((end(75, at=2.0), end(78, at=1.0)), False, ConfigurationError, "message 78"),  # the first with a meaning
        ((end(75, at=2.0), end(65, at=1.0)), False, DataError, "message 65"),
        ((end(75, at=2.0), end(75, at=1.0)), False, Interrupted, "message 75"),
        # A failure because another had failed is not the cause.
        ((end(1, at=1.0, is_follow_up=True), end(78, at=2.0)), False, ConfigurationError, "message 78"),
        ((end(1, is_follow_up=True), None), False, Interrupted, "process 2 of 2 was killed"),
        ((None, end(0)), False, Interrupted, "process 1 of 2 was killed"),
        ((end(1), None), False, SystemExit, "1"),  # a bug
        ((None, None), True, Interrupted, "asked to stop before the first step"),
        ((), False, ConfigurationError, "could not start 2 processes"),
    ],
)
def test_the_cause_of_a_bad_end_is_that_of_the_stage(tmp_path: Path, ends, is_stopped, kind, message: str):
    with pytest.raises(kind, match=message):
        _conclude(TWO, begun(tmp_path, *ends), OtherNodes(tmp_path), is_good=False, is_stopped=is_stopped)


def test_a_process_lives_as_long_as_it_holds_its_file(tmp_path: Path):
    assert read_pid(tmp_path, 0) is None
    assert not is_alive(tmp_path, 0)
    with (tmp_path / "worker-0.pid").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write("77")
        lock.flush()
        assert (read_pid(tmp_path, 0), is_alive(tmp_path, 0)) == (77, True)
    assert not is_alive(tmp_path, 0)


def test_an_end_is_read_as_it_was_written(tmp_path: Path):
    written = end(75, at=3.5, is_follow_up=True)
    assert read_end(tmp_path, 0) is None
    _write_end(tmp_path, 0, written)
    assert read_end(tmp_path, 0) == written
    assert json.loads((tmp_path / "worker-0.json").read_text())["code"] == 75
