"""Removes the least recently used checkpoints of a stage where all together take too much room.

Runs of other values (experiments, snapshots of a tree) have folders beside each other, and any of
them may live: each has the lock of its folder. A folder is removed under its lock and under another
name first, so that a run that begins in it meanwhile finds it whole or absent;
`tree_locks.lock_file` notices a lock whose file was removed between opening and locking it.
"""

import contextlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from posttrain.provenance.tree_locks import LOCK
from posttrain.runtime.environment import positive_number
from posttrain.runtime.locks import is_at, take_lock_now

MAX_VARIABLE, DEFAULT_MAX_GB = "POSTTRAIN_CHECKPOINTS_MAX_GB", 50.0  # a machine fact; 10^9 bytes
_REMOVED = ".removed-"


def max_checkpoints_gb(environment: Mapping[str, str] = os.environ) -> float:
    """Limit for the checkpoints of one stage. Raises ConfigurationError for no positive number."""
    return positive_number(environment, MAX_VARIABLE, DEFAULT_MAX_GB, "gigabytes")


def remove_old_checkpoints(stage_dir: Path, *, max_gb: float, keep: Path) -> None:
    """Remove the least recently used folders of `stage_dir` until the rest is small enough, but for
    `keep` and those with a living lock. One that cannot be removed stays."""
    if not stage_dir.is_dir():
        return
    # Left by a process that was killed in the middle; no run would open these names.
    for left in stage_dir.glob(f"{_REMOVED}*"):
        shutil.rmtree(left, ignore_errors=True)
    found = {folder: _usage(folder) for folder in stage_dir.iterdir() if folder.is_dir()}
    num_bytes = sum(size for _, size in found.values())
    for folder, (_, size) in sorted(found.items(), key=lambda one: one[1]):
        is_too_much = num_bytes > max_gb * 1e9
        if is_too_much and folder.resolve() != keep.resolve() and _remove_unless_locked(folder, size):
            num_bytes -= size


def _remove_unless_locked(folder: Path, num_bytes: int) -> bool:
    lock_path = folder / LOCK
    with contextlib.suppress(OSError), lock_path.open("a", encoding="ascii") as lock:
        take_lock_now(lock)
        if not is_at(lock_path, lock) or _usage(folder)[1] > num_bytes:
            return False  # another process was first to remove it, or a run has worked in it since
        removed = folder.with_name(f"{_REMOVED}{folder.name}-{os.getpid()}")
        folder.rename(removed)
        shutil.rmtree(removed, ignore_errors=True)
        return True
    return False


def _usage(folder: Path) -> tuple[float, int]:
    """Last use and bytes of everything in it: a folder's own time stands still while a file is
    written."""
    last_used_s, num_bytes = 0.0, 0
    for parent, _, files in os.walk(folder):
        for path in (parent, *(os.path.join(parent, name) for name in files)):
            with contextlib.suppress(FileNotFoundError):  # the run in it goes on, or another removes it
                status = os.lstat(path)
                last_used_s, num_bytes = max(last_used_s, status.st_mtime), num_bytes + status.st_blocks * 512
    return last_used_s, num_bytes
