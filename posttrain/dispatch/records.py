"""Job records: the submitter writes each job as a row of a local SQLite file before the job is
started.

So a flow that died finds its jobs again by what they compute (`key`), and no job is started without
a record. Attempts at a key are numbered; the result of the highest counts. A job that is forgotten
or mistaken for another would run twice, so every row has a checksum, and a damaged file is refused
as a whole.
"""

import contextlib
import os
import sqlite3
import time
import uuid
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from posttrain.dispatch.backend import Cause, JobStatus
from posttrain.runtime.exits import ConfigurationError, Interrupted, StageError
from posttrain.runtime.locks import hold, is_held, one_at_a_time
from posttrain.runtime.redaction import redact
from posttrain.runtime.sqlite import transaction
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
    checksum INTEGER,  -- CRC-32 of the columns before it
    UNIQUE (key, attempt)
);
CREATE TABLE submitter (name TEXT NOT NULL, checksum INTEGER);
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
_SELECT = f"SELECT {_COLUMNS}, checksum FROM jobs"


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
            rows = connection.execute("SELECT name, checksum FROM submitter").fetchall()
        if len(rows) != 1 or rows[0][1] != _checksum(rows[0][:1]):
            raise self._damaged("the name that jobs get on backends is not what was written")
        return str(rows[0][0])

    def latest(self, key: str) -> JobRecord | None:
        """The last attempt at what `key` names."""
        with self._transaction() as connection:
            row = connection.execute(f"{_SELECT} WHERE key = ? ORDER BY attempt DESC LIMIT 1", (key,)).fetchone()
        return self._record(row) if row else None

    def all(self) -> list[JobRecord]:
        """Newest first."""
        with self._transaction() as connection:
            rows = connection.execute(f"{_SELECT} ORDER BY submitted_at DESC, attempt DESC").fetchall()
        return [self._record(row) for row in rows]

    def add(self, record: JobRecord) -> bool:
        """False where that attempt is recorded already: another process was first, and the job is
        its."""
        row = tuple({**asdict(record), "folder": str(record.folder), "log": str(record.log)}.values())
        marks = ", ".join("?" * (len(row) + 1))
        with self._transaction() as connection:
            try:
                connection.execute(f"INSERT INTO jobs ({_COLUMNS}, checksum) VALUES ({marks})", (*row, _checksum(row)))
            except sqlite3.IntegrityError as error:
                if error.sqlite_errorcode in (sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY):
                    return False
                raise
        return True

    def set_job_id(self, name: str, job_id: str) -> None:
        """Record the id that the backend gave the job."""
        self._change(name, "job_id = ?", job_id)

    def set_owner(self, name: str, owner: str) -> None:
        """Record that another run waits for the job now."""
        self._change(name, "owner = ?", owner)

    def end(self, name: str, status: JobStatus) -> None:
        """Record how the job ended; an end that is recorded already stays."""
        cause = status.cause or Cause.NODE_LOST
        with self._transaction() as connection:
            row = self._row(connection, name)
            if row is not None and not self._record(row).is_over:
                values = (time.time(), status.exit_code, str(cause), redact(status.note))
                self._write(connection, name, "ended_at = ?, exit_code = ?, cause = ?, note = ?", *values)

    def not_over(self) -> list[JobRecord]:
        """Jobs whose end is not recorded."""
        with self._transaction() as connection:
            rows = connection.execute(f"{_SELECT} WHERE ended_at IS NULL").fetchall()
        return [self._record(row) for row in rows]

    def of_folder(self, name: str) -> JobRecord | None:
        """Record of the job whose folder had that name, wherever the folder above it lay then."""
        query = f"{_SELECT} WHERE substr(folder, -length(:end)) = :end"
        with self._transaction() as connection:
            row = connection.execute(query, {"end": f"/{name}"}).fetchone()
        return self._record(row) if row else None

    def forget(self, before: float) -> int:
        """Delete records of jobs that ended before then (seconds since 1970), but never that of the
        last attempt at a key. Returns how many."""
        old = "ended_at < ? AND attempt < (SELECT max(attempt) FROM jobs AS other WHERE other.key = jobs.key)"
        with self._transaction() as connection:
            return int(connection.execute(f"DELETE FROM jobs WHERE {old}", (before,)).rowcount)

    def _change(self, name: str, assignment: str, value: str) -> None:
        with self._transaction() as connection:
            row = self._row(connection, name)
            if row is not None:
                self._record(row)  # or a damaged row would be sealed as it is
                self._write(connection, name, assignment, value)

    def _row(self, connection: sqlite3.Connection, name: str) -> tuple[Any, ...] | None:
        row: tuple[Any, ...] | None = connection.execute(f"{_SELECT} WHERE name = ?", (name,)).fetchone()
        return row

    def _write(self, connection: sqlite3.Connection, name: str, assignments: str, *values: Any) -> None:
        connection.execute(f"UPDATE jobs SET {assignments} WHERE name = ?", (*values, name))
        _seal(connection, name)

    def _record(self, row: tuple[Any, ...]) -> JobRecord:
        values = dict(zip(_COLUMNS.split(", "), row, strict=False))
        if row[-1] != _checksum(row[:-1]):
            raise self._damaged(f"the row of job {values['name']!r} is not what was written")
        try:
            cause = Cause(values["cause"]) if values["cause"] else None
            return JobRecord(**{**values, "folder": Path(values["folder"]), "log": Path(values["log"]), "cause": cause})
        except (TypeError, ValueError) as error:  # sealed so
            raise self._damaged(f"the row of job {values['name']!r} is none that this code writes: {error}") from error

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Waits for another process's; all or nothing."""
        try:
            # one that was moved away while a flow lives is not begun anew without a word
            uri = f"{self._path.resolve().as_uri()}?mode=rw"
            opened = sqlite3.connect(uri, uri=True, timeout=_BUSY_TIMEOUT_S, isolation_level=None)
            with contextlib.closing(opened) as connection, transaction(connection):
                yield connection
        except (sqlite3.ProgrammingError, sqlite3.NotSupportedError):
            raise
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # the latter: SQLite's message quotes no text
            raise self._end_of(error) from error

    def _create(self) -> None:
        """Under another name first: a file that is there is whole, and an empty one damaged."""
        partial = self._path.with_name(f".{self._path.name}.partial")
        partial.unlink(missing_ok=True)
        open(partial, "w", opener=private).close()
        with contextlib.closing(sqlite3.connect(partial, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            name = os.urandom(16).hex()
            connection.executescript(
                f"BEGIN; {_SCHEMA} INSERT INTO submitter VALUES ('{name}', {_checksum((name,))}); COMMIT;"
            )
        partial.rename(self._path)

    def _end_of(self, error: sqlite3.DatabaseError | UnicodeDecodeError) -> StageError:
        match getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF:
            case sqlite3.SQLITE_FULL:
                return Interrupted(
                    f"no space left for {self._path}, the records of jobs: free some and run again, "
                    "running jobs are found again"
                )
            case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
                return Interrupted(
                    f"another process has held {self._path} for more than {_BUSY_TIMEOUT_S:g} s: "
                    "run again when it is done"
                )
            case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH:
                return ConfigurationError(
                    f"the records of jobs in {self._path} cannot be opened ({error}): it must be a file, "
                    "and it and its folder writable; move away what is there in its place"
                )
        return self._damaged(str(error))

    def _damaged(self, what: str) -> ConfigurationError:
        return ConfigurationError(
            f"{self._path} is damaged ({what}), so it is not certain which jobs run where, and one might be "
            "started twice. End those that still run: they are named STAGE-KEY-SUBMITTER-ATTEMPT (`squeue --me`, "
            f"`kubectl get jobs`) and have a log of that name in {self._path.parent}/logs. Then move "
            f"{self._path.name} away (with -wal and -shm beside it): the next flow begins new records, "
            "and what is done stays done"
        )


def _seal(connection: sqlite3.Connection, name: str) -> None:
    row = connection.execute(f"SELECT {_COLUMNS} FROM jobs WHERE name = ?", (name,)).fetchone()
    connection.execute("UPDATE jobs SET checksum = ? WHERE name = ?", (_checksum(row), name))


def _checksum(row: tuple[Any, ...]) -> int:
    """Checksum of a row's values as SQLite gives them back."""
    return zlib.crc32(repr(tuple(row)).encode("utf-8", "surrogatepass"))
