"""Creates and opens the SQLite file of the trace store, and turns SQLite's errors into exit
codes."""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from posttrain.runtime.exits import ConfigurationError, DataError, Interrupted, StageError
from posttrain.runtime.locks import one_at_a_time
from posttrain.traces.location import VARIABLE, refuse_network_mount
from posttrain.traces.schema import APPLICATION_ID, SCHEMA, SCHEMA_VERSION

BUSY_TIMEOUT_S = 60.0  # for another writer's transaction; an import has the longest, a run at a time
REMEDY = (
    "move the file away, and the next stage begins a new one; episodes are records for people, "
    "no result depends on them"
)


def open_to_write(path: Path) -> sqlite3.Connection:
    """A connection for writing; creates the store and its folders where there is none.
    Transactions are opened by hand, and the connection may be handed to another thread.

    Raises ConfigurationError where the place is a network mount or cannot be written, or the store
    has another version; DataError where the file is damaged or no trace store; Interrupted where
    the disk is full.
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
    refuse_network_mount(path)
    connection = _connect(path, "ro")
    with typed_errors(path):
        connection.execute("PRAGMA mmap_size = 1000000000")
    return connection


def quick_check(connection: sqlite3.Connection) -> list[str]:
    """Problems that SQLite finds in the file's pages and tables; empty where there are none."""
    return [found for (found,) in connection.execute("PRAGMA quick_check(20)") if found != "ok"]


def set_aside(path: Path) -> Path:
    """Rename a damaged store and its write-ahead log, and give the new path; an earlier one that
    was set aside is replaced."""
    aside = path.with_name(f"{path.name}.damaged")
    with one_at_a_time(path.parent):
        try:  # another process may have set it aside meanwhile and begun a new one
            _connect(path, "ro").close()
        except DataError:
            for suffix in ("", "-wal", "-shm"):
                with contextlib.suppress(FileNotFoundError):
                    path.with_name(path.name + suffix).rename(aside.with_name(aside.name + suffix))
    return aside


@contextlib.contextmanager
def typed_errors(path: Path) -> Iterator[None]:
    """Re-raises SQLite's errors about the file as errors with an exit code. A wrong use of the
    library (ProgrammingError) is our bug and passes; an unknown table or column is a damaged file,
    because a store that could be opened has all of them."""
    try:
        yield
    except (sqlite3.ProgrammingError, sqlite3.NotSupportedError):
        raise
    # UnicodeDecodeError: SQLite's own message quotes bytes of a damaged schema.
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        raise _stage_error(path, error) from error


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
            _refuse_other(path, connection)
        except BaseException:
            connection.close()
            raise
    return connection


def _refuse_other(path: Path, connection: sqlite3.Connection) -> None:
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    if application_id != APPLICATION_ID:
        raise DataError(
            f"{path} is empty or another SQLite file but no trace store: move it away, or name another with {VARIABLE}"
        )
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version != SCHEMA_VERSION:
        raise ConfigurationError(
            f"the trace store {path} has schema version {version} and this code reads {SCHEMA_VERSION} alone: delete "
            "it or move it away, and the next stage begins a new one; the code that wrote it still reads it"
        )
    connection.execute("SELECT 1 FROM episodes LIMIT 1").fetchone()  # reads the schema, which may be damaged


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


def _stage_error(path: Path, error: sqlite3.DatabaseError | UnicodeDecodeError) -> StageError:
    # The low byte is SQLite's primary result code; the rest says where in SQLite it came up.
    match getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF:
        case sqlite3.SQLITE_FULL:
            return Interrupted(
                f"no space left for the trace store {path}: free some, or empty it with `posttrain clean traces --yes`"
            )
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return Interrupted(
                f"another process has been writing to {path} for more than {BUSY_TIMEOUT_S:g} s: "
                "try again when it is done"
            )
        case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH:
            return ConfigurationError(
                f"the trace store {path} cannot be opened ({error}): it must be a file, not a folder, and it and its "
                "folder writable, for readers too; move it away, or name another"
            )
    return damaged(path, " ".join(str(error).split()))  # SQLite quotes the whole statement of a damaged schema
