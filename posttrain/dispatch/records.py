"""Job records: the submitter writes each job as a row of a local SQLite file before the job is
started.

So a flow that died finds its jobs again by what they compute (`key`), and no job is started without
a record. Attempts at a key are numbered; the result of the highest counts. A job that is forgotten
would run twice, so a damaged file is refused as a whole.
"""

import contextlib
import os
import sqlite3
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from posttrain.dispatch.backend import Cause, JobStatus
from posttrain.runtime.exits import ConfigurationError
from posttrain.runtime.locks import hold, is_held, one_at_a_time
from posttrain.runtime.redaction import redact
from posttrain.runtime.sqlite import transaction, typed_errors
from posttrain.runtime.state import private, private_folder

_BUSY_TIMEOUT_S = 60.0
_SCHEMA = """
CREATE TABLE jobs (
    name TEXT PRIMARY KEY,
    stage TEXT NOT NULL,
    key TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    target TEXT NOT NULL,
    job_id TEXT,  -- the backend's; null until it has accepted the job
    folder TEXT NOT NULL,
    log TEXT NOT NULL,
    owner TEXT NOT NULL,  -- the run that waits for it
    submitted_at REAL NOT NULL,  -- seconds since 1970
    ended_at REAL,
    exit_code INTEGER,
    cause TEXT,
    note TEXT NOT NULL DEFAULT '',
    UNIQUE (key, attempt)
);
CREATE TABLE submitter (name TEXT NOT NULL);
"""


@dataclass(frozen=True, slots=True)
class JobRecord:
    """One attempt at one stage. `job_id` is None until the backend has accepted it; `ended_at`,
    `exit_code` and `cause` until it is known to be over."""

    name: str
    stage: str
    key: str
    attempt: int
    target: str
    job_id: str | None
    folder: Path
    log: Path
    owner: str
    submitted_at: float
    ended_at: float | None = None
    exit_code: int | None = None
    cause: Cause | None = None
    note: str = ""

    @property
    def handle(self) -> str:
        """The backend's id of the job; one that has none yet is found by our name."""
        return self.job_id or self.name

    @property
    def is_over(self) -> bool:
        return self.ended_at is not None


class Owner:
    """A run that waits for jobs: it holds a lock named after it, in a folder that all runs of the
    machine share, as long as this object and the process live. The kernel frees the lock when the
    run dies, so a held lock means a living run; a PID may be another process's by then.

    `name` is unique among all runs.
    """

    def __init__(self, folder: Path) -> None:
        self.name = uuid.uuid4().hex
        self._lock = hold(private_folder(folder) / self.name)

    def close(self) -> None:
        """The run waits for no job any more."""
        Path(self._lock.name).unlink(missing_ok=True)
        self._lock.close()


def is_alive(folder: Path, name: str) -> bool:
    """True where a process holds the run's lock."""
    return is_held(folder / name)


_COLUMNS = ", ".join(field.name for field in fields(JobRecord))
_SELECT = f"SELECT {_COLUMNS} FROM jobs"


class JobRecords:
    """Safe to use from several processes on one machine; each call is a transaction of its own.

    All raise ConfigurationError where the file is damaged or cannot be used, and Interrupted where
    the disk is full or another process holds it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        with one_at_a_time(path.parent):
            if not path.exists():
                self._create()
        with self._transaction() as connection:
            # some milliseconds: there are hundreds of jobs
            (found,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
            if found != "ok":
                raise self._damaged(found)

    @property
    def submitter(self) -> str:
        """32 hex digits that no other records have: a backend remembers names for longer than a
        folder lives, and has other submitters."""
        with self._transaction() as connection:
            (name,) = connection.execute("SELECT name FROM submitter").fetchone()
        return str(name)

    def latest(self, key: str) -> JobRecord | None:
        return next(iter(self._select("WHERE key = ? ORDER BY attempt DESC LIMIT 1", key)), None)

    def all(self) -> list[JobRecord]:
        """Newest first."""
        return self._select("ORDER BY submitted_at DESC, attempt DESC")

    def not_over(self) -> list[JobRecord]:
        """Jobs whose end is not recorded."""
        return self._select("WHERE ended_at IS NULL")

    def of_folder(self, name: str) -> JobRecord | None:
        """Record of the job whose folder had that name, wherever the folder above it lay then."""
        return next(iter(self._select("WHERE substr(folder, -length(?1)) = ?1", f"/{name}")), None)

    def add(self, record: JobRecord) -> bool:
        """False where that attempt is recorded already: another process was first, and the job is
        its."""
        row = {**asdict(record), "folder": str(record.folder), "log": str(record.log)}.values()
        insert = f"INSERT INTO jobs VALUES ({', '.join('?' * len(row))}) ON CONFLICT (key, attempt) DO NOTHING"
        with self._transaction() as connection:
            return bool(connection.execute(insert, tuple(row)).rowcount)

    def set_job_id(self, name: str, job_id: str) -> None:
        self._execute("UPDATE jobs SET job_id = ? WHERE name = ?", job_id, name)

    def set_owner(self, name: str, owner: str) -> None:
        self._execute("UPDATE jobs SET owner = ? WHERE name = ?", owner, name)

    def end(self, name: str, status: JobStatus) -> None:
        """Record how the job ended; an end that is recorded already stays."""
        values = (time.time(), status.exit_code, str(status.cause or Cause.NODE_LOST), redact(status.note), name)
        end = "ended_at = ?, exit_code = ?, cause = ?, note = ?"
        self._execute(f"UPDATE jobs SET {end} WHERE name = ? AND ended_at IS NULL", *values)

    def forget(self, before: float) -> None:
        """Delete records of jobs that ended before then (seconds since 1970), but never that of the
        last attempt at a key."""
        last = "SELECT max(attempt) FROM jobs AS other WHERE other.key = jobs.key"
        self._execute(f"DELETE FROM jobs WHERE ended_at < ? AND attempt < ({last})", before)

    def _select(self, condition: str, *values: str) -> list[JobRecord]:
        with self._transaction() as connection:
            rows = connection.execute(f"{_SELECT} {condition}", values).fetchall()
        return [self._record(row) for row in rows]

    def _execute(self, statement: str, *values: Any) -> None:
        with self._transaction() as connection:
            connection.execute(statement, values)

    def _record(self, row: tuple[Any, ...]) -> JobRecord:
        values = dict(zip(_COLUMNS.split(", "), row, strict=True))
        try:
            cause = Cause(values["cause"]) if values["cause"] else None
            return JobRecord(**{**values, "folder": Path(values["folder"]), "log": Path(values["log"]), "cause": cause})
        except (TypeError, ValueError) as error:
            raise self._damaged(f"the row of job {values['name']!r} is none that this code writes: {error}") from error

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Waits for another process's; all or nothing."""
        with typed_errors(self._path, self._damaged):
            # one that was moved away while a flow lives is not begun anew without a word
            uri = f"{self._path.resolve().as_uri()}?mode=rw"
            opened = sqlite3.connect(uri, uri=True, timeout=_BUSY_TIMEOUT_S, isolation_level=None)
            with contextlib.closing(opened) as connection, transaction(connection):
                yield connection

    def _create(self) -> None:
        """Under another name first: a file that is there is whole, and an empty one damaged."""
        partial = self._path.with_name(f".{self._path.name}.partial")
        partial.unlink(missing_ok=True)
        open(partial, "w", opener=private).close()
        with contextlib.closing(sqlite3.connect(partial, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.executescript(
                f"BEGIN; {_SCHEMA} INSERT INTO submitter VALUES ('{os.urandom(16).hex()}'); COMMIT;"
            )
        partial.rename(self._path)

    def _damaged(self, reason: str) -> ConfigurationError:
        return ConfigurationError(
            f"{self._path} is damaged ({reason}), so it is not certain which jobs run where, and one might be "
            "started twice. End those that still run: they are named STAGE-KEY-SUBMITTER-ATTEMPT (`squeue --me`, "
            f"`kubectl get jobs`) and have a log of that name in {self._path.parent}/logs. Then move "
            f"{self._path.name} away (with -wal and -shm beside it): the next flow begins new records, "
            "and what is done stays done"
        )
