"""The runner starts several processes and reads their ends; with real ones:
tests/train/test_processes.py and tests/real."""

import fcntl
import json
from pathlib import Path

import pytest

from posttrain.provenance.launcher import Launch, _conclude, asked_launch
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
    with pytest.raises(ConfigurationError, match="cannot be read"):
        asked_launch({"POSTTRAIN_LAUNCH": str(tmp_path / "none.yaml")})
    (tmp_path / "other.yaml").write_text("a: 1\n")
    with pytest.raises(ConfigurationError, match="no distributed_type"):
        asked_launch({"POSTTRAIN_LAUNCH": str(tmp_path / "other.yaml")})


def test_a_good_end_is_that_of_all_and_their_memory_adds_up(tmp_path: Path):
    assert _conclude(TWO, begun(tmp_path, end(0), end(0)), 0, is_stopped=False) == 200.0


@pytest.mark.parametrize(("code", "kind"), [(78, ConfigurationError), (65, DataError), (75, Interrupted)])
def test_the_first_end_with_a_meaning_is_the_stages(tmp_path: Path, code: int, kind: type[Exception]):
    with pytest.raises(kind, match=f"message {code}"):
        _conclude(TWO, begun(tmp_path, end(75, at=2.0), end(code, at=1.0)), 1, is_stopped=False)


def test_what_failed_because_another_had_is_not_the_cause(tmp_path: Path):
    with pytest.raises(ConfigurationError):
        _conclude(TWO, begun(tmp_path, end(1, at=1.0, is_follow_up=True), end(78, at=2.0)), 1, is_stopped=False)


def test_where_all_others_failed_because_of_it_the_one_without_a_word_is_the_cause(tmp_path: Path):
    with pytest.raises(Interrupted, match="process 2 of 2 was killed from outside"):
        _conclude(TWO, begun(tmp_path, end(1, is_follow_up=True), None), 1, is_stopped=False)


def test_a_bug_ends_with_1(tmp_path: Path):
    with pytest.raises(SystemExit) as ended:
        _conclude(TWO, begun(tmp_path, end(1), None), 1, is_stopped=False)
    assert ended.value.code == 1


def test_one_that_left_no_word_was_killed(tmp_path: Path):
    with pytest.raises(Interrupted, match="process 1 of 2 was killed from outside"):
        _conclude(TWO, begun(tmp_path, None, end(0)), 1, is_stopped=False)


def test_a_stop_before_the_first_step_is_an_interruption(tmp_path: Path):
    with pytest.raises(Interrupted, match="asked to stop before the first step"):
        _conclude(TWO, begun(tmp_path, None, None), 1, is_stopped=True)


def test_where_nothing_started_it_is_the_configuration_or_the_port(tmp_path: Path):
    with pytest.raises(ConfigurationError, match="could not start 2 processes"):
        _conclude(TWO, tmp_path, 1, is_stopped=False)
    with pytest.raises(Interrupted, match="port"):
        _conclude(TWO, tmp_path, 75, is_stopped=False)


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
