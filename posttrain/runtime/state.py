"""The state folder `.posttrain`: job records, traces, locks. git ignores it and no stage declares
it. Cheap to import: every command does.

Logs, databases and records are for their user alone: what a stage prints may be as private as what
it reads. Where a team shares a tree on purpose, and its group may write there, the group may do the
same below: who may edit the code can read what it writes anyway.
"""

import contextlib
import hashlib
import os
import shutil
import stat
from pathlib import Path

STATE_DIR = Path(".posttrain")
JOBS = "jobs.db"  # records of the jobs that flows started
RUNS = "runs"  # locks of the flows that live
TRACES = "traces.db"
WANDB = "wandb"  # runs of Weights & Biases
SNAPSHOT = "POSTTRAIN_SNAPSHOT"  # variable, 1 for who works in a frozen tree, which nobody edits
_ALL = 0o777


def state_dir(root: Path) -> Path:
    """The state folder of the tree at `root`, made private where it was not there."""
    return private_folder(root / STATE_DIR)


def private_folder(path: Path) -> Path:
    """`path`, made with all that is missing above it, for its user alone (0700), or for the group
    too where that may write it or the folder above.

    One that is there already loses what others may do; where it is somebody else's it is left as it
    is.
    """
    if not path.is_dir():
        if not path.parent.is_dir():
            private_folder(path.parent)
        path.mkdir(0o700, exist_ok=True)
    now = path.stat().st_mode
    _set_mode(path, now, 0o770 if _is_shared(now) or _is_shared(path.parent.stat().st_mode) else 0o700)
    return path


def private(path: str, flags: int) -> int:
    """An opener for `open`: the file is made for its user alone (0600), or for the group too where
    that may write the folder; one that is there already loses what others may do."""
    file = os.open(path, flags, 0o600)
    is_shared = _is_shared(os.stat(os.path.dirname(path) or ".").st_mode)
    _set_mode(file, os.fstat(file).st_mode, 0o660 if is_shared else 0o600)
    return file


def tree_name(root: Path) -> str:
    """Names the tree in what several share: 16 hex digits of its path and its folder's inode."""
    status = root.stat()
    text = f"{root.resolve()} {status.st_dev} {status.st_ino}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def remove_tree(folder: Path) -> None:
    """Remove a folder, read-only ones in it too; what cannot be removed stays."""
    for name, _, _ in os.walk(folder):
        with contextlib.suppress(OSError):
            os.chmod(name, 0o700)
    shutil.rmtree(folder, ignore_errors=True)


def _is_shared(mode: int) -> bool:
    """True for a folder that its group may write on purpose, not /tmp."""
    return bool(mode & stat.S_IWGRP) and not mode & stat.S_ISVTX


def _set_mode(place: Path | int, now: int, wanted: int) -> None:
    if now & _ALL != wanted:
        with contextlib.suppress(PermissionError):  # another member of the team made it
            os.chmod(place, stat.S_IMODE(now) & ~_ALL | wanted)
