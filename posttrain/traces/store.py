"""SQLite file of the trace store: where it lies, its schema, and connections to it.

Columns that filters read (`episodes`) are apart from what a reader of one episode wants (`bodies`):
a million turns are 25 MB of the former, scanned in a moment, and ten times as much of the latter. A
task is stored once, by the hash of its content.

Its place and size limit are machine facts, so they come from the environment and not from
params.yaml: changing them reruns nothing. Network mounts are refused: SQLite's write-ahead log
keeps its index in memory that all readers and writers share. Two machines share none, so the file
would be damaged silently.
"""

import contextlib
import os
import re
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from posttrain.runtime.environment import positive_number
from posttrain.runtime.exits import ConfigurationError, DataError
from posttrain.runtime.locks import one_at_a_time
from posttrain.runtime.sqlite import typed_errors as typed_sqlite_errors
from posttrain.runtime.state import STATE_DIR, TRACES

VARIABLE = "POSTTRAIN_TRACES"
MAX_VARIABLE = "POSTTRAIN_TRACES_MAX_GB"
DEFAULT_PATH = STATE_DIR / TRACES
DEFAULT_MAX_GB = 2.0
_NETWORK = re.compile(
    r"nfs\d*|cifs|smb\w*|afs|9p|lustre|gpfs|beegfs\w*|ceph|glusterfs|pvfs2|orangefs|ocfs2|gfs2|vboxsf|prl_fs"
    r"|fuse\.(sshfs|glusterfs|ceph\S*|beegfs\S*|lustre\S*|juicefs|s3fs|gcsfuse|goofys|rclone|mount-s3|blobfuse\d*|davfs\S*|vmhgfs\S*)"
)
BUSY_TIMEOUT_S = 60.0  # for another writer's transaction; an import has the longest, a run at a time
REMEDY = (
    "move the file away, and the next stage begins a new one; episodes are records for people, "
    "no result depends on them"
)
SCHEMA_VERSION = 6  # a store of another version is set aside, never migrated
APPLICATION_ID = int.from_bytes(b"pttr", "big")  # marks a SQLite file as a trace store
SCHEMA = """
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
    cell TEXT NOT NULL,  -- its labels' values
    content TEXT NOT NULL  -- JSON
);
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
    num_turns INTEGER NOT NULL,
    UNIQUE (run, number)
);
CREATE TABLE bodies (
    episode INTEGER PRIMARY KEY,
    content BLOB NOT NULL,  -- zlib of JSON, without the task's opening messages
    token_ids BLOB NOT NULL,  -- zlib of int32
    mask BLOB NOT NULL,  -- zlib of bytes
    logprobs BLOB NOT NULL  -- float32, one for each 1 of mask
);
CREATE TABLE calls (
    episode INTEGER NOT NULL,
    tool TEXT NOT NULL,
    outcome TEXT NOT NULL,  -- empty: never answered
    PRIMARY KEY (episode, tool, outcome)
) WITHOUT ROWID;
CREATE INDEX calls_by_tool ON calls (tool, outcome);
"""


@dataclass(frozen=True, slots=True)
class Location:
    """A store's path. `is_asked`: a person named it, so an error about it is raised; at the default
    path a stage warns and goes on."""

    path: Path
    is_asked: bool


def trace_location() -> Location | None:
    """The path in `POSTTRAIN_TRACES`, None where it says `off`, `.posttrain/traces.db` in the
    working directory where it is not set."""
    asked = os.environ.get(VARIABLE, "")
    if asked.lower() == "off":
        return None
    return Location(Path(asked), True) if asked else Location(DEFAULT_PATH, False)


def max_store_bytes() -> int:
    """`POSTTRAIN_TRACES_MAX_GB` in bytes, 10^9 a gigabyte. Raises ConfigurationError."""
    return int(positive_number(os.environ, MAX_VARIABLE, DEFAULT_MAX_GB, "gigabytes") * 1e9)


def refuse_network_mount(path: Path) -> None:
    """Raises ConfigurationError where `path` (links followed; it need not exist) is on a network
    mount: the deepest mount point above it counts, and of several over one point the last."""
    import psutil  # slower than a whole listing, which does not ask

    where, kind = path.resolve(), ""
    for mount in sorted(psutil.disk_partitions(all=True), key=lambda mount: len(Path(mount.mountpoint).parts)):
        if where.is_relative_to(mount.mountpoint):
            kind = mount.fstype
    if _NETWORK.fullmatch(kind):
        raise ConfigurationError(
            f"{path} is on a network mount ({kind}): SQLite's write-ahead log needs memory that all readers and "
            "writers share, which two machines have not, and the store would be damaged. Set "
            f"{VARIABLE} to a path on a local disk, or to off"
        )


def open_to_write(path: Path) -> sqlite3.Connection:
    """A connection for writing, for any thread; makes the store where there is none. Transactions
    are opened by hand.

    Raises ConfigurationError for a network mount or a place that cannot be written, DataError for a
    damaged file or another version, Interrupted for a full disk.
    """
    refuse_network_mount(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with one_at_a_time(path.parent):
            if not path.exists():
                _create(path)
    except OSError as error:
        raise ConfigurationError(
            f"the trace store {path} cannot be made ({error.strerror}): set {VARIABLE} to a path that can, or to off"
        ) from error
    connection = _connect(path, "rw")
    with typed_errors(path):
        # A power cut may lose the last transactions, and damages nothing.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA journal_size_limit = 16000000")
    return connection


def open_to_read(path: Path) -> sqlite3.Connection:
    """A read-only connection. Raises DataError where there is no store, and as `open_to_write`."""
    if not path.exists():
        raise DataError(
            f"{path} is not there: no stage has run an episode here yet, or traces were off. "
            f"Run from the root of the repository, or name the store with {VARIABLE}"
        )
    connection = _connect(path, "ro")
    with typed_errors(path):
        connection.execute("PRAGMA mmap_size = 1000000000")
    return connection


def set_aside(path: Path) -> Path:
    """Rename an unreadable store and its log; replaces an earlier one. Returns the new path."""
    aside = path.with_name(f"{path.name}.aside")
    with one_at_a_time(path.parent):
        try:  # another process may have set it aside meanwhile and begun a new one
            _connect(path, "ro").close()
        except DataError:
            for suffix in ("", "-wal", "-shm"):
                with contextlib.suppress(FileNotFoundError):
                    path.with_name(path.name + suffix).rename(aside.with_name(aside.name + suffix))
    return aside


def typed_errors(path: Path) -> contextlib.AbstractContextManager[None]:
    """Re-raises SQLite's errors about the file as errors with an exit code. An unknown table or
    column is a damaged file, because a store that could be opened has all of them."""
    return typed_sqlite_errors(path, lambda reason: damaged(path, reason))


def damaged(path: str | Path, reason: str) -> DataError:
    """The error for a store that cannot be read, with the remedy."""
    return DataError(f"{path} is damaged, cut off or no trace store ({reason}): {REMEDY}")


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    with typed_errors(path):
        # A URI, because only its mode keeps SQLite from creating an empty file.
        uri = f"{path.resolve().as_uri()}?mode={mode}"
        connection = sqlite3.connect(
            uri, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        try:
            found = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")]
            if found != [APPLICATION_ID, SCHEMA_VERSION]:
                raise damaged(path, f"it is empty, another SQLite file or of a version other than {SCHEMA_VERSION}")
            connection.execute("SELECT 1 FROM episodes LIMIT 1").fetchone()  # reads the schema, which may be damaged
        except BaseException:
            connection.close()
            raise
    return connection


def _create(path: Path) -> None:
    """Built under another name and renamed, so that a store is whole or absent."""
    partial = path.with_name(f".{path.name}.partial")
    partial.unlink(missing_ok=True)
    with typed_errors(path), contextlib.closing(sqlite3.connect(partial, isolation_level=None)) as connection:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # before the first table, or the file could never shrink
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(
            f"BEGIN; {SCHEMA} PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"
        )
    partial.rename(path)
