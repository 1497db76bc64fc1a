"""Removes the checkpoints of a stage that were not used for two weeks, and the least recently used
where all take too much room.

Runs of other values (experiments, snapshots of a tree) have folders beside each other, and any of
them may live: each has the lock of its folder. A folder is removed under its lock and under another
name first, so that a run that begins in it meanwhile finds it whole or absent;
`tree_locks.lock_file` notices a lock whose file was removed between opening and locking it. The
limits are machine facts, so they come from the environment.
"""

import contextlib
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from posttrain.provenance.tree_locks import LOCK
from posttrain.runtime.environment import positive_number
from posttrain.runtime.locks import is_at, take_lock_now

MAX_AGE_VARIABLE = "POSTTRAIN_CHECKPOINTS_MAX_AGE_DAYS"
MAX_VARIABLE = "POSTTRAIN_CHECKPOINTS_MAX_GB"
DEFAULT_MAX_AGE_DAYS, DEFAULT_MAX_GB = 14.0, 50.0
_REMOVED = ".removed-"
_DAY_S = 86400.0


@dataclass(frozen=True, slots=True)
class CheckpointLimits:
    """Limits for the checkpoints of one stage; `max_gb` None is any size. A gigabyte has 10^9
    bytes."""

    max_age_days: float
    max_gb: float | None


def checkpoint_limits(environment: Mapping[str, str] | None = None) -> CheckpointLimits:
    """Limits of `POSTTRAIN_CHECKPOINTS_MAX_AGE_DAYS` (14) and `POSTTRAIN_CHECKPOINTS_MAX_GB` (50).
    Raises ConfigurationError where one is no positive number."""
    asked = os.environ if environment is None else environment
    return CheckpointLimits(
        positive_number(asked, MAX_AGE_VARIABLE, DEFAULT_MAX_AGE_DAYS, "days"),
        positive_number(asked, MAX_VARIABLE, DEFAULT_MAX_GB, "gigabytes"),
    )


def remove_old_checkpoints(stage_dir: Path, limits: CheckpointLimits, *, keep: Path) -> tuple[Path, ...]:
    """Remove folders of `stage_dir` in which nothing was written for too long, then the least
    recently used until the rest takes no more than it may; gives those removed. `keep` stays, and
    so does each whose lock a living process has. A folder that cannot be removed stays without an
    error: the work of the caller is done."""
    if not stage_dir.is_dir():
        return ()
    # Left by a process that was killed in the middle; no run would open these names.
    for left in stage_dir.glob(f"{_REMOVED}*"):
        shutil.rmtree(left, ignore_errors=True)
    found = [_usage(folder) for folder in stage_dir.iterdir() if folder.is_dir() and not folder.name.startswith(".")]
    num_bytes, oldest_s = sum(one.num_bytes for one in found), time.time() - limits.max_age_days * _DAY_S
    removed: list[Path] = []
    for one in sorted(found, key=lambda one: one.last_used_s):
        is_too_much = limits.max_gb is not None and num_bytes > limits.max_gb * 1e9
        is_due = is_too_much or one.last_used_s < oldest_s
        if is_due and one.folder.resolve() != keep.resolve() and _remove_unless_locked(one):
            removed.append(one.folder)
            num_bytes -= one.num_bytes
    return tuple(removed)


@dataclass(frozen=True, slots=True)
class _Usage:
    folder: Path
    last_used_s: float
    num_bytes: int


def _remove_unless_locked(one: _Usage) -> bool:
    folder, lock_path = one.folder, one.folder / LOCK
    with contextlib.suppress(OSError), lock_path.open("a", encoding="ascii") as lock:
        take_lock_now(lock)
        if not is_at(lock_path, lock) or _usage(folder).num_bytes > one.num_bytes:
            return False  # another process was first to remove it, or a run has worked in it since
        removed = folder.with_name(f"{_REMOVED}{folder.name}-{os.getpid()}")
        folder.rename(removed)
        shutil.rmtree(removed, ignore_errors=True)
        return True
    return False


def _usage(folder: Path) -> _Usage:
    """By everything in it: a folder's own time stands still while a checkpoint in it is written."""
    last_used_s, num_bytes = 0.0, 0
    for parent, _, files in os.walk(folder):
        for path in (parent, *(os.path.join(parent, name) for name in files)):
            with contextlib.suppress(FileNotFoundError):  # the run in it goes on, or another removes it
                status = os.lstat(path)
                last_used_s, num_bytes = max(last_used_s, status.st_mtime), num_bytes + status.st_blocks * 512
    return _Usage(folder, last_used_s, num_bytes)
