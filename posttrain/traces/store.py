"""In which tables do traces lie, how is the file made and opened, and which errors of SQLite mean what?

What a filter looks at is apart from what a reader of one episode wants: a million turns are 25 MB of `episodes`, read in a moment, and ten times as
much of `bodies`. What a task says is stored once, by its content.
"""

import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from posttrain.exits import ConfigurationError, DataError, Interrupted, StageError
from posttrain.traces.location import VARIABLE, refuse_network_mount

SCHEMA_VERSION = 2
UNKNOWN = -1  # as a turn's message_index: version 1 did not keep it
APPLICATION_ID = int.from_bytes(b"pttr", "big")  # what makes a SQLite file a trace store
BUSY_TIMEOUT_S = 60.0  # for another writer's transaction; an import has the longest, a run at a time
_SCHEMA = """
CREATE TABLE runs (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    uid TEXT NOT NULL UNIQUE,
    stage TEXT NOT NULL,
    key TEXT NOT NULL,
    started_at REAL NOT NULL,  -- seconds since 1970
    settings TEXT NOT NULL  -- JSON: the sections world and agent
);
CREATE TABLE tasks (
    id INTEGER PRIMARY KEY,
    digest BLOB NOT NULL UNIQUE,  -- of content
    task_id TEXT NOT NULL,
    cell TEXT NOT NULL,  -- kind/market/language/difficulty
    content TEXT NOT NULL  -- JSON
);
CREATE TABLE tools (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE episodes (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    run INTEGER NOT NULL,
    number INTEGER NOT NULL,  -- counts the run's episodes
    task INTEGER NOT NULL,
    step INTEGER,
    part TEXT NOT NULL,
    is_failed INTEGER NOT NULL,
    is_success INTEGER,
    stop_reason TEXT NOT NULL,
    reward REAL,
    advantage REAL,
    seed INTEGER NOT NULL,
    policy_version INTEGER NOT NULL,
    num_turns INTEGER NOT NULL,
    num_tokens INTEGER NOT NULL,
    UNIQUE (run, number)
);
CREATE TABLE bodies (
    episode INTEGER PRIMARY KEY,
    messages BLOB NOT NULL,  -- zlib of OpenAI messages, without the task's opening ones where is_opening_left_out
    is_opening_left_out INTEGER NOT NULL,
    token_ids BLOB NOT NULL,  -- zlib of int32, little-endian as all arrays
    mask BLOB NOT NULL,  -- zlib of int8
    logprobs BLOB NOT NULL,  -- float32, one for each 1 of mask
    scores TEXT NOT NULL,
    failure TEXT NOT NULL,
    num_forks INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE turns (
    episode INTEGER NOT NULL,
    number INTEGER NOT NULL,
    num_read INTEGER NOT NULL,
    num_written INTEGER NOT NULL,
    policy_version INTEGER NOT NULL,
    latency_s REAL NOT NULL,
    message_index INTEGER DEFAULT -1,
    PRIMARY KEY (episode, number)
) WITHOUT ROWID;
CREATE TABLE calls (
    episode INTEGER NOT NULL,
    number INTEGER NOT NULL,  -- counts the episode's calls
    turn INTEGER NOT NULL,
    tool INTEGER NOT NULL,
    outcome TEXT,  -- null: never answered
    num_attempts INTEGER,
    latency_s REAL,
    call_id TEXT,  -- null: version 1, whose calls stand as in the messages
    PRIMARY KEY (episode, number)
) WITHOUT ROWID;
CREATE INDEX calls_by_tool ON calls (tool, episode, outcome);
"""
_FROM_VERSION_1 = (
    "ALTER TABLE bodies ADD COLUMN num_forks INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE turns ADD COLUMN message_index INTEGER DEFAULT -1",
    "ALTER TABLE calls ADD COLUMN call_id TEXT",
)


def open_to_write(path: Path) -> sqlite3.Connection:
    """Make the store where there is none, with its folders; one of version 1 gets the columns that it lacks. Transactions are opened by hand; the
    connection may be handed to another thread.

    Raises ConfigurationError where the place is a network mount or cannot be written, or the store is of a newer version; DataError where the file is
    no trace store or damaged; Interrupted where the disk is full.
    """
    refuse_network_mount(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path.parent):
            if not path.exists():
                _create(path)
    except OSError as error:
        raise ConfigurationError(f"the trace store {path} cannot be made ({error.strerror}): set {VARIABLE} to a path that can, or to off") from error
    connection = _connect(path, "rw")
    with typed_errors(path):
        connection.execute("PRAGMA synchronous = NORMAL")  # a power cut may lose the last transactions and damages nothing
        connection.execute("PRAGMA journal_size_limit = 16000000")
        _bring_up_to_date(connection)
    return connection


def open_to_read(path: Path) -> sqlite3.Connection:
    """As `open_to_write`, of a store that exists; its episodes cannot be changed. Raises DataError where there is none."""
    if not path.exists():
        raise DataError(
            f"{path} is not there: no stage has played an episode here yet, or traces were off. Run from the root of the repository, or name the "
            f"store with {VARIABLE}"
        )
    refuse_network_mount(path)
    connection = _connect(path, "ro")
    with typed_errors(path):
        if _version(connection) < SCHEMA_VERSION:
            open_to_write(path).close()
        connection.execute("PRAGMA mmap_size = 1000000000")
    return connection


@contextlib.contextmanager
def typed_errors(path: Path) -> Iterator[None]:
    """SQLite's errors about the file as ends with a meaning; what is our bug (a wrong statement) stays as it is."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        end = _end_of(path, error)
        if end is None:
            raise
        raise end from error


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All or nothing; waits for another writer's."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # a full disk has rolled it back already
            connection.execute("ROLLBACK")
        raise


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    with typed_errors(path):
        uri = f"{path.resolve().as_uri()}?mode={mode}"
        connection = sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
        try:
            _refuse_other(path, connection)
        except BaseException:
            connection.close()
            raise
    return connection


def _refuse_other(path: Path, connection: sqlite3.Connection) -> None:
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    if application_id != APPLICATION_ID:
        raise DataError(f"{path} is a SQLite file but no trace store; name another with {VARIABLE}")
    if (version := _version(connection)) > SCHEMA_VERSION:
        raise ConfigurationError(
            f"the trace store {path} has version {version} and this code knows {SCHEMA_VERSION}, so it would misread it: use the newer code, or move "
            "the file away"
        )


def _bring_up_to_date(connection: sqlite3.Connection) -> None:
    if _version(connection) < SCHEMA_VERSION:
        with transaction(connection):
            if _version(connection) < SCHEMA_VERSION:  # no other process has done it meanwhile
                for statement in (*_FROM_VERSION_1, f"PRAGMA user_version = {SCHEMA_VERSION}"):
                    connection.execute(statement)


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One process at a time; two stages may be the first to open the store."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _create(path: Path) -> None:
    """Under another name first, so that a store is whole or absent."""
    partial = path.with_name(f".{path.name}.partial")
    partial.unlink(missing_ok=True)
    with typed_errors(path), contextlib.closing(sqlite3.connect(partial, isolation_level=None)) as connection:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # before the first table, or the file could never shrink
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(f"BEGIN; {_SCHEMA} PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")
    partial.rename(path)


def _end_of(path: Path, error: sqlite3.DatabaseError) -> StageError | None:
    match getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF:  # the rest of the code says where in SQLite
        case sqlite3.SQLITE_FULL:
            return Interrupted(f"no space left for the trace store {path}: free some, or lower it with `posttrain traces prune --max-gb`")
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return Interrupted(f"another process has been writing to {path} for more than {BUSY_TIMEOUT_S:g} s: try again when it is done")
        case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH:
            return ConfigurationError(f"the trace store {path} cannot be opened ({error}): it and its folder must be writable, for readers too")
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_IOERR:
            return DataError(f"{path} is damaged, cut off or no trace store ({error}): move it away, and the next stage begins a new one")
    return None
