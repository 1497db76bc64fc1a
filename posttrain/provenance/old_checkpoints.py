"""Forgets the checkpoints of a stage that were not used for two weeks, and the least recently used
where all take too much room.

Runs of other values (experiments, snapshots of a tree) have folders beside each other, and any of
them may live: each holds the lock of its folder. A folder goes under its lock and under another
name first, so that it is whole or absent for who begins in it meanwhile; `holding.hold` notices a
lock whose file was taken away between opening and locking it. The limits are machine facts, so they
come from the environment.
"""

import contextlib
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from posttrain.runtime.environment import positive_number
from posttrain.runtime.locks import is_at, take_lock_now

MAX_AGE_VARIABLE = "POSTTRAIN_CHECKPOINTS_MAX_AGE_DAYS"
MAX_VARIABLE = "POSTTRAIN_CHECKPOINTS_MAX_GB"
DEFAULT_MAX_AGE_DAYS, DEFAULT_MAX_GB = 14.0, 50.0
LOCK = "lock"
_FORGOTTEN = ".forgotten-"
_DAY_S = 86400.0


@dataclass(frozen=True, slots=True)
class CheckpointLimits:
    """Of the checkpoints of one stage. A gigabyte has 10^9 bytes."""

    max_age_days: float
    max_gb: float


def checkpoint_limits(environment: Mapping[str, str] | None = None) -> CheckpointLimits:
    """What `POSTTRAIN_CHECKPOINTS_MAX_AGE_DAYS` (14) and `POSTTRAIN_CHECKPOINTS_MAX_GB` (50) say.
    Raises ConfigurationError where one is no positive number."""
    asked = os.environ if environment is None else environment
    return CheckpointLimits(
        positive_number(asked, MAX_AGE_VARIABLE, DEFAULT_MAX_AGE_DAYS, "days"),
        positive_number(asked, MAX_VARIABLE, DEFAULT_MAX_GB, "gigabytes"),
    )


def forget_old_checkpoints(
    stage_dir: Path, *, keep: Path, max_age_days: float, max_gb: float | None
) -> tuple[Path, ...]:
    """Remove folders of `stage_dir` in which nothing was written for `max_age_days`, then the least
    recently used until all take `max_gb` (None: any size); gives those removed. `keep` stays, and
    so does each whose `lock` a living process holds. What cannot be removed stays without an error:
    the work of who asks is done."""
    if not stage_dir.is_dir():
        return ()
    for left in stage_dir.glob(
        f"{_FORGOTTEN}*"
    ):  # by who was killed in the middle; they have no name that a run would open
        shutil.rmtree(left, ignore_errors=True)
    found = [
        _used(folder) for folder in stage_dir.iterdir() if folder.is_dir() and not folder.name.startswith(_FORGOTTEN)
    ]
    num_bytes, oldest_s = sum(one.num_bytes for one in found), time.time() - max_age_days * _DAY_S
    removed: list[Path] = []
    for one in sorted(found, key=lambda one: one.last_used_s):
        is_too_much = max_gb is not None and num_bytes > max_gb * 1e9
        if (
            one.folder.resolve() != keep.resolve()
            and (is_too_much or one.last_used_s < oldest_s)
            and _remove_unless_held(one)
        ):
            removed.append(one.folder)
            num_bytes -= one.num_bytes
    return tuple(removed)


def _remove_unless_held(one: "_Used") -> bool:
    folder, lock_path = one.folder, one.folder / LOCK
    with contextlib.suppress(OSError), lock_path.open("a", encoding="ascii") as lock:
        take_lock_now(lock)
        if not is_at(lock_path, lock) or _used(folder).num_bytes > one.num_bytes:
            return False  # another process was first to forget it, or a run has worked in it since it was looked at
        forgotten = folder.with_name(f"{_FORGOTTEN}{folder.name}-{os.getpid()}")
        folder.rename(forgotten)
        shutil.rmtree(forgotten, ignore_errors=True)
        return True
    return False


@dataclass(frozen=True, slots=True)
class _Used:
    folder: Path
    last_used_s: float
    num_bytes: int


def _used(folder: Path) -> _Used:
    """By everything in it: a folder's own time stands still while a checkpoint in it is written."""
    last_used_s, num_bytes = 0.0, 0
    for parent, _, files in os.walk(folder):
        for path in (parent, *(os.path.join(parent, name) for name in files)):
            with contextlib.suppress(FileNotFoundError):  # the run in it goes on, or another forgets it
                status = os.lstat(path)
                last_used_s, num_bytes = max(last_used_s, status.st_mtime), num_bytes + status.st_blocks * 512
    return _Used(folder, last_used_s, num_bytes)
