"""Makes and opens the file of traces, and gives SQLite's errors a meaning."""

import contextlib
import functools
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from posttrain.runtime.exits import ConfigurationError, DataError, Interrupted, StageError
from posttrain.runtime.locks import one_at_a_time
from posttrain.runtime.sqlite import transaction
from posttrain.traces.integrity import REMEDY, seal_all
from posttrain.traces.location import VARIABLE, refuse_network_mount
from posttrain.traces.schema import (
    APPLICATION_ID,
    FROM_VERSION_1,
    FROM_VERSION_2,
    FROM_VERSION_3,
    SCHEMA,
    SCHEMA_VERSION,
)

BUSY_TIMEOUT_S = 60.0  # for another writer's transaction; an import has the longest, a run at a time


def open_to_write(path: Path) -> sqlite3.Connection:
    """Make the store where there is none, with its folders; one of version 1 gets the columns that
    it lacks. Transactions are opened by hand; the connection may be handed to another thread.

    Raises ConfigurationError where the place is a network mount or cannot be written, or the store
    is of a newer version; DataError where the file is no trace store or damaged; Interrupted where
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
        connection.execute(
            "PRAGMA synchronous = NORMAL"
        )  # a power cut may lose the last transactions and damages nothing
        connection.execute("PRAGMA journal_size_limit = 16000000")
        _bring_up_to_date(connection)
    return connection


def open_to_read(path: Path) -> sqlite3.Connection:
    """As `open_to_write`, of a store that exists; its episodes cannot be changed. Raises DataError
    where there is none."""
    if not path.exists():
        raise DataError(
            f"{path} is not there: no stage has played an episode here yet, or traces were off. "
            "Run from the root of the repository, or name the "
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
    """SQLite's errors about the file as ends with a meaning. A wrong use of the library
    (ProgrammingError) is our bug and stays as it is; a statement that SQLite refuses is none,
    because a store has the tables that were looked for when it was opened."""
    try:
        yield
    except (sqlite3.ProgrammingError, sqlite3.NotSupportedError):
        raise
    except (
        sqlite3.DatabaseError,
        UnicodeDecodeError,
    ) as error:  # the latter where SQLite's own message quotes what is no text
        raise _end_of(path, error) from error


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    with typed_errors(path):
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
    if (version := _version(connection)) > SCHEMA_VERSION:
        raise ConfigurationError(
            f"the trace store {path} has version {version} and this code knows {SCHEMA_VERSION}, "
            "so it would misread it: use the newer code, or move "
            "the file away"
        )
    if version == SCHEMA_VERSION and _tables(connection) != _tables_of_today():
        raise DataError(f"{path} is damaged: its tables are not those of a trace store ({REMEDY})")


@functools.cache
def _tables_of_today() -> list[tuple[object, ...]]:
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(SCHEMA)
        return _tables(connection)


def _tables(connection: sqlite3.Connection) -> list[tuple[object, ...]]:
    """Columns and indexes as SQLite understands them, which a byte in the text of a table's
    definition changes; triggers by their text."""
    columns = (
        'SELECT m.name, t.name, t.type, t."notnull", t.dflt_value, '
        "t.pk FROM sqlite_master m JOIN pragma_table_info(m.name) t ORDER BY 1, t.cid"
    )
    indexes = (
        "SELECT m.name, m.tbl_name, i.name FROM sqlite_master m JOIN pragma_index_info(m.name) i WHERE type = "
        "'index' ORDER BY 1, i.seqno"
    )
    triggers = "SELECT name, tbl_name, sql FROM sqlite_master WHERE type = 'trigger' ORDER BY 1"
    return [row for statement in (columns, indexes, triggers) for row in connection.execute(statement)]


def _bring_up_to_date(connection: sqlite3.Connection) -> None:
    if _version(connection) < SCHEMA_VERSION:
        with transaction(connection):
            if _version(connection) < SCHEMA_VERSION:  # no other process has done it meanwhile
                steps = (FROM_VERSION_1, FROM_VERSION_2, FROM_VERSION_3)[_version(connection) - 1 :]
                statements = [statement for step in steps for statement in step]
                for statement in statements:
                    connection.execute(statement)
                seal_all(connection)
                connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _create(path: Path) -> None:
    """Under another name first, so that a store is whole or absent."""
    partial = path.with_name(f".{path.name}.partial")
    partial.unlink(missing_ok=True)
    with typed_errors(path), contextlib.closing(sqlite3.connect(partial, isolation_level=None)) as connection:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # before the first table, or the file could never shrink
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(
            f"BEGIN; {SCHEMA} PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"
        )
    partial.rename(path)


def _end_of(path: Path, error: sqlite3.DatabaseError | UnicodeDecodeError) -> StageError:
    match getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF:  # the rest of the code says where in SQLite
        case sqlite3.SQLITE_FULL:
            return Interrupted(
                f"no space left for the trace store {path}: free some, or lower it with `posttrain traces prune "
                "--max-gb`"
            )
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return Interrupted(
                f"another process has been writing to {path} for more than {BUSY_TIMEOUT_S:g} s: "
                "try again when it is done"
            )
        case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH:
            return ConfigurationError(
                f"the trace store {path} cannot be opened ({error}): it must be a file, not a folder, "
                "and it and its folder writable, "
                "for readers too; move it away, or name another"
            )
    said = " ".join(str(error).split())  # SQLite quotes the whole statement that a damaged schema holds
    return DataError(f"{path} is damaged, cut off or no trace store ({said}): {REMEDY}")
