"""Locks: one process at a time runs a stage in a tree, and one of those that share its
checkpoints."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from posttrain.provenance.costs import ATTEMPTS
from posttrain.runtime.exits import Interrupted
from posttrain.runtime.locks import is_at, take_lock_now
from posttrain.runtime.state import STATE_DIR, private

ENDING, LOCK = "ending", "lock"
_POLL_S = 0.1
_FIRST_PATIENCE_S = 1.0  # for a process that has just been killed, or has yet to notice that its dvc was
_ENDING_PATIENCE_S = 30.0  # for one that writes its last checkpoint


def full_name(stage: str, item: str) -> str:
    """`evaluate@sft`, or the stage alone where it has no items."""
    return f"{stage}@{item}" if item else stage


def checkpoint_folder(root: Path, name: str, key: str) -> Path:
    """Checkpoints of runs with these inputs; snapshots of a tree share them."""
    return root / STATE_DIR / "checkpoints" / name / key[:16]


def has_work(checkpoint_dir: Path) -> bool:
    """True if a run with these inputs has left something there that the next one resumes from."""
    return checkpoint_dir.is_dir() and any(path.name not in (LOCK, ATTEMPTS) for path in checkpoint_dir.iterdir())


@contextlib.contextmanager
def lock_stage(root: Path, name: str) -> Iterator[IO[str]]:
    """Lock the stage in this tree: a killed `dvc` leaves its trainer alive for a while, and two
    would write the same files. Raises Interrupted where another process has it and does not end."""
    with lock_file(root / STATE_DIR / "locks" / f"{name}.lock") as lock:
        yield lock


@contextlib.contextmanager
def lock_checkpoints(root: Path, name: str, key: str) -> Iterator[Path]:
    """Lock the checkpoint folder of these inputs, which snapshots of a tree share; gives the
    folder. Raises Interrupted where another process has it and does not end."""
    folder = checkpoint_folder(root, name, key)
    with lock_file(folder / LOCK):
        yield folder


def announce_end(lock: IO[str]) -> None:
    """Have those that wait for this lock wait a little longer, for a last checkpoint."""
    lock.write(f" {ENDING}")
    lock.flush()


@contextlib.contextmanager
def lock_file(path: Path) -> Iterator[IO[str]]:
    """Lock a file and write this process's pid to it. Raises Interrupted where another keeps it."""
    started_s = time.monotonic()
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = open(path, "a+", encoding="ascii", errors="replace", opener=private)  # noqa: SIM115 closed below
        except (FileNotFoundError, FileExistsError):  # its folder is being removed
            if time.monotonic() - started_s > _FIRST_PATIENCE_S:
                raise
            continue
        with file as lock:
            try:
                take_lock_now(lock)
            except BlockingIOError as error:
                lock.seek(0)
                pid, _, state = lock.read().strip().partition(" ")
                patience_s = _ENDING_PATIENCE_S if state == ENDING else _FIRST_PATIENCE_S
                if time.monotonic() - started_s > patience_s:
                    raise Interrupted(
                        f"process {pid or '?'} is still running this stage, "
                        "left over from a killed `dvc` or a lost job; two would overwrite "
                        "each other's files. Wait for it or kill it, then run again: the work done is kept"
                    ) from error
                time.sleep(_POLL_S)
                continue
            if not is_at(path, lock):
                continue  # it was removed with its folder between the two calls
            lock.truncate(0)
            lock.write(str(os.getpid()))
            lock.flush()
            yield lock
            return
