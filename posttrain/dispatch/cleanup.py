"""Garbage-collects the state folder with each run: files that no living run, job or lock needs.

A run is dead when nobody holds its lock. A killed run leaves its lock file, those of the keys that
it computed, and trees of jobs: a tree is removed when its job is over by the records and the run
that waits for the job is dead. Jobs that are over leave a log, a folder of the local backend and a
record, which are removed by age (`POSTTRAIN_LOGS_MAX_AGE_DAYS`, 30), logs also by size
(`POSTTRAIN_LOGS_MAX_GB`, 1), the oldest first. The record of the last attempt at each key stays:
the next attempt is numbered after it, and SLURM and Kubernetes remember names for longer.

Any number of runs may do this at once.
"""

import math
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal, TypeAlias

from posttrain.dispatch.backend import Backend
from posttrain.dispatch.backends.local import LOCK
from posttrain.dispatch.records import JobRecord, JobRecords, Owner, is_alive
from posttrain.runtime.environment import positive_number
from posttrain.runtime.locks import held_if_free, is_held
from posttrain.runtime.state import RUNS, private_folder, remove_tree

MAX_AGE, MAX_SIZE = "POSTTRAIN_LOGS_MAX_AGE_DAYS", "POSTTRAIN_LOGS_MAX_GB"
DEFAULT_AGE_DAYS, DEFAULT_SIZE_GB = 30.0, 1.0
KEYS, SNAPSHOTS, LOGS, JOB_FOLDERS = "keys", "snapshots", "logs", Path("local/jobs")
AT_MOST = 100  # of each kind at a time; a run leaves fewer
MAX_JOB_FOLDERS = 2000  # of jobs that are over: each takes some 20 KB of small files
_PREPARING_S = 3600.0  # nobody copies a tree for so long
_TREE = re.compile(r".+-([0-9a-f]{10})-\d+")  # STAGE-KEY-ATTEMPT

Kind: TypeAlias = Literal["tree", "run", "key", "job", "log"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on files of finished jobs: their age in seconds, and the bytes of all logs
    together."""

    max_age_s: float
    max_bytes: int


@dataclass(frozen=True, slots=True)
class Leftover:
    """Something that may go."""

    kind: Kind
    path: Path

    def num_bytes(self) -> int:
        """On the disk; 0 where it is gone by now."""
        return disk_bytes(self.path)


def limits_of(environment: Mapping[str, str] | None = None) -> Limits:
    """Limits from the environment. Raises ConfigurationError where one is no positive number."""
    given = os.environ if environment is None else environment
    days = positive_number(given, MAX_AGE, DEFAULT_AGE_DAYS, "days")
    return Limits(days * 86400, int(positive_number(given, MAX_SIZE, DEFAULT_SIZE_GB, "gigabytes") * 1e9))


def disk_bytes(path: Path, seen: set[tuple[int, int]] | None = None) -> int:
    """Bytes on disk of all files at or below a path; links are not followed. A file with several
    names (a link into DVC's cache) counts once in all calls with the same `seen`, and not at all
    without one."""
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
        if status.st_nlink == 1 or (seen is not None and name not in seen):
            num_bytes += status.st_blocks * 512
        if seen is not None:
            seen.add(name)
    return num_bytes


class Cleaning:
    """Cleaning of one state folder by a living run (`owner`). `take_out` is called with a job's
    tree before it is removed; `now` gives seconds since 1970."""

    def __init__(
        self,
        state: Path,
        records: JobRecords,
        limits: Limits,
        owner: Owner,
        *,
        take_out: Callable[[Path], None] = lambda _: None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._state, self._records, self._limits, self._owner = state, records, limits, owner
        self._take_out, self._now = take_out, now

    def leftovers(self) -> Iterator[Leftover]:
        """All that may go at the moment, the records of old jobs left out."""
        for kind in self._kinds():
            yield from kind

    def clean(self, *, at_most: int | None = AT_MOST, within_s: float = math.inf) -> list[Leftover]:
        """Remove leftovers, `at_most` of each kind (None: all), and records of old jobs. Returns
        what was removed. Once `within_s` is over only trees are removed: they alone are large."""
        deadline, gone = time.monotonic() + within_s, []
        for kind in self._kinds():
            for found in islice(kind, at_most):
                if found.kind != "tree" and time.monotonic() > deadline:
                    break
                if self._remove(found):
                    gone.append(found)
        self._records.forget(self._now() - self._limits.max_age_s)
        return gone

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
                    self._remove_tree(record.folder)
                ended.append(record)
        return ended

    def _abandoned(self) -> list[JobRecord]:
        return [record for record in self._records.not_over() if not is_alive(self._state / RUNS, record.owner)]

    def _kinds(self) -> Iterator[Iterator[Leftover]]:
        yield self._trees()  # before keys: a run that prepares a tree not yet recorded holds its key
        yield (Leftover("run", path) for path in _files(self._state / RUNS) if not is_held(path))
        yield (Leftover("key", path) for path in _files(self._state / KEYS) if not is_held(path))
        yield self._job_folders()
        yield self._logs()

    def _trees(self) -> Iterator[Leftover]:
        folder = self._state / SNAPSHOTS
        for path in sorted(folder.iterdir()) if folder.is_dir() else []:
            if self._is_dead(path) and not any(map(is_held, self._keys_of(path))):
                yield Leftover("tree", path)

    def _is_dead(self, tree: Path) -> bool:
        if tree.name.startswith("."):  # being frozen, or being removed: .RUN-…
            return not is_alive(self._state / RUNS, tree.name[1:].partition("-")[0])
        record = self._records.of_folder(tree.name)
        if record is not None:
            return record.is_over and not is_alive(self._state / RUNS, record.owner)
        is_ours = _TREE.fullmatch(tree.name) is not None  # else a person's
        return is_ours and (bool(self._keys_of(tree)) or self._now() - _changed(tree) > _PREPARING_S)

    def _keys_of(self, tree: Path) -> list[Path]:
        """Lock files of the keys that a tree may be of: a run that prepares a tree or takes its
        result holds one."""
        found = _TREE.fullmatch(tree.name)
        return sorted((self._state / KEYS).glob(f"{found.group(1)}*")) if found else []

    def _job_folders(self) -> Iterator[Leftover]:
        folder = self._state / JOB_FOLDERS
        found = _oldest_first(folder)
        too_many, too_old = len(found) - MAX_JOB_FOLDERS, self._now() - self._limits.max_age_s
        living: set[str] | None = None
        for number, (changed, _, name) in enumerate(found):
            if number >= too_many and changed >= too_old:
                return
            # read after the folder, because a record is made before its job
            living = self._names_not_over() if living is None else living
            if name not in living and not is_held(folder / name / LOCK):
                yield Leftover("job", folder / name)

    def _logs(self) -> Iterator[Leftover]:
        folder = self._state / LOGS
        found = _oldest_first(folder)
        left, too_old = sum(size for _, size, _ in found), self._now() - self._limits.max_age_s
        living: set[str] | None = None
        for changed, size, name in found:
            if left <= self._limits.max_bytes and changed >= too_old:
                return
            living = self._names_not_over() if living is None else living
            if name.removesuffix(".log") not in living:
                left -= size
                yield Leftover("log", folder / name)

    def _names_not_over(self) -> set[str]:
        return {record.name for record in self._records.not_over()}

    def _remove(self, found: Leftover) -> bool:
        """Removes a job's files; False where another run has taken the job meanwhile."""
        match found.kind:
            case "tree":
                with ExitStack() as held:
                    are_keys_ours = all(held.enter_context(held_if_free(key)) for key in self._keys_of(found.path))
                    return are_keys_ours and self._is_dead(found.path) and self._remove_tree(found.path)
            case "run" | "key":
                with held_if_free(found.path) as is_ours:
                    return is_ours
            case "job":
                shutil.rmtree(found.path, ignore_errors=True)
            case "log":
                found.path.unlink(missing_ok=True)
        return True

    def _remove_tree(self, tree: Path) -> bool:
        """Rename the tree after this run, then remove it: of several runs only one can rename
        it."""
        ours = tree.with_name(f".{self._owner.name}-{uuid.uuid4().hex}")
        try:
            tree.rename(ours)
        except FileNotFoundError:
            return False
        self._take_out(ours)
        remove_tree(ours)
        return True


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []


def _oldest_first(folder: Path) -> list[tuple[float, int, str]]:
    """Modification time, size in bytes and name of each entry; entries that vanish meanwhile are
    left out."""
    found = []
    if folder.is_dir():
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                found.append((status.st_mtime, status.st_size, entry.name))
    return sorted(found)


def _changed(path: Path) -> float:
    """Time of the last change of name or content (ctime), which no copy can set back."""
    try:
        return path.stat().st_ctime
    except FileNotFoundError:
        return math.inf
