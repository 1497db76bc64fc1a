"""Garbage-collects the state folder with each run: files that no living run, job or lock needs.

A run is dead when nobody holds its lock. A killed run leaves its lock file, those of the keys that
it computed, and trees of jobs: a tree is removed when its job is over by the records and the run
that waits for the job is dead. Jobs that are over leave a log, a folder of the local backend and a
record, which are removed after 30 days. The record of the last attempt at each key stays: the next
attempt is numbered after it, and SLURM and Kubernetes remember names for longer.

Any number of runs may do this at once.
"""

import re
import shutil
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from posttrain.dispatch.backend import Backend
from posttrain.dispatch.backends.local import LOCK
from posttrain.dispatch.records import JobRecord, JobRecords, Owner, is_alive
from posttrain.runtime.locks import held_if_free, is_held
from posttrain.runtime.state import RUNS, private_folder, remove_tree

MAX_AGE_S = 30 * 86400.0
KEYS, SNAPSHOTS, LOGS, JOB_FOLDERS = "keys", "snapshots", "logs", Path("local/jobs")
_PREPARING_S = 3600.0  # nobody copies a tree for so long
_TREE = re.compile(r".+-([0-9a-f]{10})-\d+")  # STAGE-KEY-ATTEMPT


def disk_bytes(path: Path, seen: set[tuple[int, int]]) -> int:
    """Bytes on disk of all files at or below a path; links are not followed. A file with several
    names (a link into DVC's cache) counts once in all calls with the same `seen`."""
    num_bytes, left = 0, [path]
    while left:
        place = left.pop()
        try:
            if place.is_dir() and not place.is_symlink():
                left += place.iterdir()
                continue
            status = place.lstat()
        except OSError:
            continue
        name = (status.st_dev, status.st_ino)
        if name not in seen:
            num_bytes += status.st_blocks * 512
        seen.add(name)
    return num_bytes


class Cleaning:
    """Cleaning of one state folder by a living run (`owner`). `take_out` is called with a job's
    tree before it is removed."""

    def __init__(
        self, state: Path, records: JobRecords, owner: Owner, *, take_out: Callable[[Path], None] = lambda _: None
    ) -> None:
        self._state, self._records, self._owner, self._take_out = state, records, owner, take_out

    def clean(self, *, max_age_s: float = MAX_AGE_S) -> None:
        """Remove what dead runs left, and the files of jobs that ended so long ago."""
        for tree in _entries(self._state / SNAPSHOTS):
            self._remove_dead(tree)
        # Keys after trees: a run that prepares a tree which is not recorded yet holds its key.
        for path in (*_entries(self._state / RUNS), *_entries(self._state / KEYS)):
            with held_if_free(path):
                pass  # a lock file that nobody holds is removed
        old = time.time() - max_age_s
        folders = [path for path in _entries(self._state / JOB_FOLDERS) if _time_of(path) < old]
        logs = [path for path in _entries(self._state / LOGS) if _time_of(path) < old]
        # Read after the folders, because a record is made before its job.
        living = {record.name for record in self._records.not_over()}
        for folder in folders:
            if folder.name not in living and not is_held(folder / LOCK):
                shutil.rmtree(folder, ignore_errors=True)
        for log in logs:
            if log.stem not in living:
                log.unlink(missing_ok=True)
        self._records.forget(old)

    def kill_abandoned(self, backend_of: Callable[[str], Backend | None]) -> None:
        """Kills processes of jobs whose supervisor and whose run are dead: a local backend kills
        them when asked for their status. `backend_of` a target is None where it is not local."""
        for record in self._abandoned():
            if (backend := backend_of(record.target)) is not None:
                backend.status(record.handle)

    def end_abandoned(self, backend_of: Callable[[str], Backend | None]) -> list[JobRecord]:
        """Record the ends of jobs that are over and that no living run waits for, and take their
        trees away: for a run that has asked for all that it wants. A result is in the run cache."""
        ended, keys = [], private_folder(self._state / KEYS)
        for record in self._abandoned():
            backend = backend_of(record.target)
            if backend is None or not (status := backend.status(record.handle)).is_over:
                continue
            with held_if_free(keys / record.key) as is_ours:  # nobody attaches to it meanwhile
                if not is_ours or self._records.latest(record.key) != record:
                    continue
                self._records.end(record.name, status)
                if record.folder.parent == self._state / SNAPSHOTS:
                    self._remove(record.folder)
                ended.append(record)
        return ended

    def _abandoned(self) -> list[JobRecord]:
        return [record for record in self._records.not_over() if not is_alive(self._state / RUNS, record.owner)]

    def _remove_dead(self, tree: Path) -> None:
        """Remove a tree that nobody needs. Its keys are held, so no run attaches to its job."""
        with ExitStack() as held:
            if self._is_dead(tree) and not any(map(is_held, self._keys_of(tree))):
                are_keys_ours = all(held.enter_context(held_if_free(key)) for key in self._keys_of(tree))
                if are_keys_ours and self._is_dead(tree):
                    self._remove(tree)

    def _is_dead(self, tree: Path) -> bool:
        if tree.name.startswith("."):  # being frozen, or being removed: .RUN-…
            return not is_alive(self._state / RUNS, tree.name[1:].partition("-")[0])
        record = self._records.of_folder(tree.name)
        if record is not None:
            return record.is_over and not is_alive(self._state / RUNS, record.owner)
        is_ours = _TREE.fullmatch(tree.name) is not None  # else a person's
        return is_ours and (bool(self._keys_of(tree)) or time.time() - _time_of(tree, is_change=True) > _PREPARING_S)

    def _keys_of(self, tree: Path) -> list[Path]:
        """Lock files of the keys that a tree may be of: a run that prepares a tree or takes its
        result holds one."""
        found = _TREE.fullmatch(tree.name)
        return sorted((self._state / KEYS).glob(f"{found.group(1)}*")) if found else []

    def _remove(self, tree: Path) -> None:
        """Rename the tree after this run, then remove it: of several runs only one can rename
        it."""
        ours = tree.with_name(f".{self._owner.name}-{uuid.uuid4().hex}")
        try:
            tree.rename(ours)
        except FileNotFoundError:
            return
        self._take_out(ours)
        remove_tree(ours)


def _entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _time_of(path: Path, *, is_change: bool = False) -> float:
    """Modification time, or that of the last change of name or content (ctime), which no copy can
    set back; that of a file which has vanished is now."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return time.time()
    return status.st_ctime if is_change else status.st_mtime
