"""Old checkpoint folders of a stage are removed, and none in which a run works."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from posttrain.provenance.old_checkpoints import max_checkpoints_gb, remove_old_checkpoints
from posttrain.provenance.tree_locks import LOCK, lock_file
from posttrain.runtime.exits import ConfigurationError
from posttrain.runtime.locks import is_held

DAY_S = 86400
HOLDER = """
import sys
from pathlib import Path
from posttrain.provenance.tree_locks import lock_file
with lock_file(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.readline()
"""


def used(stage_dir: Path, name: str, *, days_ago: float = 0, num_bytes: int = 4096) -> Path:
    checkpoint = stage_dir / name / "checkpoint-1"
    checkpoint.mkdir(parents=True)
    (checkpoint / "weights").write_bytes(os.urandom(num_bytes))
    (stage_dir / name / LOCK).write_text("1")
    then_s = time.time() - days_ago * DAY_S
    for path in (checkpoint / "weights", checkpoint, stage_dir / name / LOCK, stage_dir / name):
        os.utime(path, (then_s, then_s))
    return stage_dir / name


def end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.communicate("\n", timeout=30)


@pytest.fixture
def holder(repository):
    """Starts processes that hold a lock until the test ends."""
    started: list[subprocess.Popen[str]] = []

    def hold(lock: Path) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": str(repository)}
        command = [sys.executable, "-c", HOLDER, str(lock)]
        started.append(
            subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
        assert started[-1].stdout.readline() == "held\n"
        return started[-1]

    yield hold
    for process in started:
        end(process)


def test_siblings_that_end_never_forget_a_run_that_lives(tmp_path, holder):
    """It is the least recently used of all, between two of its checkpoints; three experiments that
    share the folder end meanwhile."""
    living = used(tmp_path, "living", days_ago=30)
    process = holder(living / LOCK)
    for name in ("a", "b", "c", "d"):
        keep = used(tmp_path, name)
        remove_old_checkpoints(tmp_path, max_gb=1e-9, keep=keep)
        assert (living / "checkpoint-1" / "weights").exists()
        assert is_held(living / LOCK)
    end(process)
    remove_old_checkpoints(tmp_path, max_gb=1e-9, keep=tmp_path / "d")
    assert [path.name for path in tmp_path.iterdir()] == ["d"]


def test_of_too_much_the_least_recently_used_go_first_and_the_own_run_never(tmp_path):
    folders = [used(tmp_path, f"{days}", days_ago=days, num_bytes=1_000_000) for days in (5, 4, 3, 2, 1)]
    remove_old_checkpoints(tmp_path, max_gb=0.0031, keep=folders[0])
    assert [folder.exists() for folder in folders] == [True, False, False, True, True]
    remove_old_checkpoints(tmp_path, max_gb=1e-9, keep=folders[0])
    assert list(tmp_path.iterdir()) == [folders[0]]


def test_a_folder_was_used_when_anything_in_it_was_written(tmp_path):
    written, left = (used(tmp_path, f"{days}", days_ago=days, num_bytes=1_000_000) for days in (30, 20))
    (written / "checkpoint-1" / "weights").touch()
    remove_old_checkpoints(tmp_path, max_gb=0.0015, keep=tmp_path / "c")
    assert [written.exists(), left.exists()] == [True, False]


def test_what_a_killed_process_left_half_removed_goes_too(tmp_path):
    used(tmp_path, ".removed-a-1")
    (tmp_path / "a file").write_text("")
    for folder in (tmp_path, tmp_path / "absent"):
        remove_old_checkpoints(folder, max_gb=1.0, keep=tmp_path / "b")
    assert [path.name for path in tmp_path.iterdir()] == ["a file"]


def test_a_run_that_begins_while_its_folder_is_forgotten_has_a_lock_that_others_see(tmp_path):
    """Many times at once: whoever is in the block holds the file of that name, and nothing that it
    writes there disappears."""
    folder, is_over, problems = tmp_path / "a", threading.Event(), []

    def forget():
        while not is_over.is_set():
            remove_old_checkpoints(tmp_path, max_gb=1e-12, keep=tmp_path / "b")

    forgetters = [threading.Thread(target=forget) for _ in range(2)]
    for forgetter in forgetters:
        forgetter.start()
    try:
        for _ in range(100):
            with lock_file(folder / LOCK):
                (folder / "mine").write_text("")
                time.sleep(0.001)
                if not (is_held(folder / LOCK) and (folder / "mine").exists()):
                    problems.append("gone")
    finally:
        is_over.set()
        for forgetter in forgetters:
            forgetter.join()
    assert problems == []


def test_the_limit_comes_from_the_environment():
    assert max_checkpoints_gb({"POSTTRAIN_CHECKPOINTS_MAX_GB": ""}) == 50
    assert max_checkpoints_gb({"POSTTRAIN_CHECKPOINTS_MAX_GB": "200"}) == 200
    with pytest.raises(ConfigurationError, match="POSTTRAIN_CHECKPOINTS_MAX_GB is 'two', not a positive number of"):
        max_checkpoints_gb({"POSTTRAIN_CHECKPOINTS_MAX_GB": "two"})
