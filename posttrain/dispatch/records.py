"""What does the submitter remember of its jobs? One row each in a SQLite file on its local disk, written before the job is started.

So a flow that died finds its jobs again by what they run (`key`), and what was started and not recorded does not exist. An attempt has a number of
its own; the highest of a key is the one whose result counts.
"""

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from posttrain.dispatch.contract import Cause, JobStatus

_SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (
    name TEXT PRIMARY KEY,
    stage TEXT NOT NULL,
    key TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    target TEXT NOT NULL,
    job_id TEXT,  -- the pool's; null until it has taken the job
    folder TEXT NOT NULL,
    log TEXT NOT NULL,
    owner TEXT NOT NULL,  -- the run that waits for it
    submitted_at REAL NOT NULL,  -- seconds since 1970
    ended_at REAL,
    exit_code INTEGER,
    cause TEXT,
    note TEXT NOT NULL DEFAULT '',
    UNIQUE (key, attempt)
)
"""
_SUBMITTER = "CREATE TABLE IF NOT EXISTS submitter (name TEXT NOT NULL)"
_NEW_SUBMITTER = "INSERT INTO submitter SELECT lower(hex(randomblob(16))) WHERE NOT EXISTS (SELECT * FROM submitter)"


@dataclass(frozen=True, slots=True)
class JobRecord:
    """One attempt at one stage. `job_id` is None until the pool has taken it; `ended_at`, `exit_code` and `cause` until it is known to be over."""

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
        """What the pool knows it by: a pool finds a job that it has not named yet by our name."""
        return self.job_id or self.name

    @property
    def is_over(self) -> bool:
        return self.ended_at is not None


class JobRecords:
    """Safe to use from several processes on one machine; each call is a transaction of its own."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._connection() as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            for statement in (_SCHEMA, _SUBMITTER, _NEW_SUBMITTER):
                connection.execute(statement)

    @property
    def submitter(self) -> str:
        """32 hex digits that no other records have: a pool remembers names for longer than a folder lives, and has other submitters."""
        with self._connection() as connection:
            return str(connection.execute("SELECT name FROM submitter").fetchone()[0])

    def latest(self, key: str) -> JobRecord | None:
        """The last attempt at what `key` names."""
        with self._connection() as connection:
            row = connection.execute("SELECT * FROM jobs WHERE key = ? ORDER BY attempt DESC LIMIT 1", (key,)).fetchone()
        return _record(row) if row else None

    def all(self) -> list[JobRecord]:
        """Newest first."""
        with self._connection() as connection:
            rows = connection.execute("SELECT * FROM jobs ORDER BY submitted_at DESC, attempt DESC").fetchall()
        return [_record(row) for row in rows]

    def add(self, record: JobRecord) -> bool:
        """False where that attempt is recorded already: another process was first, and the job is its."""
        row = {**asdict(record), "folder": str(record.folder), "log": str(record.log)}
        columns = ", ".join(row)
        try:
            with self._connection() as connection:
                connection.execute(f"INSERT INTO jobs ({columns}) VALUES ({', '.join(f':{name}' for name in row)})", row)  # noqa: S608 our own names
        except sqlite3.IntegrityError:
            return False
        return True

    def set_job_id(self, name: str, job_id: str) -> None:
        """The pool has taken it."""
        with self._connection() as connection:
            connection.execute("UPDATE jobs SET job_id = ? WHERE name = ?", (job_id, name))

    def set_owner(self, name: str, owner: str) -> None:
        """Another run waits for it now."""
        with self._connection() as connection:
            connection.execute("UPDATE jobs SET owner = ? WHERE name = ?", (owner, name))

    def end(self, name: str, status: JobStatus) -> None:
        """How it ended; what is recorded already stays."""
        cause = status.cause or Cause.NODE_LOST
        with self._connection() as connection:
            connection.execute(
                "UPDATE jobs SET ended_at = ?, exit_code = ?, cause = ?, note = ? WHERE name = ? AND ended_at IS NULL",
                (time.time(), status.exit_code, str(cause), status.note, name),
            )

    @contextlib.contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        with contextlib.closing(sqlite3.connect(self._path, timeout=60)) as connection, connection:
            connection.row_factory = sqlite3.Row
            yield connection


def _record(row: sqlite3.Row) -> JobRecord:
    cause = Cause(row["cause"]) if row["cause"] else None
    return JobRecord(**{**dict(row), "folder": Path(row["folder"]), "log": Path(row["log"]), "cause": cause})
