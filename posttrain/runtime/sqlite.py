"""SQLite transactions on a connection in autocommit mode (`isolation_level=None`), and SQLite's
errors as exit codes."""

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

from posttrain.runtime.exits import ConfigurationError, Interrupted, StageError


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All or nothing; waits for another writer's, as long as the connection's timeout says."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # a full disk has rolled it back already
            connection.execute("ROLLBACK")
        raise


@contextlib.contextmanager
def typed_errors(path: Path, damaged: Callable[[str], StageError]) -> Iterator[None]:
    """Re-raise SQLite's errors about the file at `path` with an exit code; `damaged` makes that of
    a damaged file. A wrong use (ProgrammingError) is our bug and passes."""
    try:
        yield
    except (sqlite3.ProgrammingError, sqlite3.NotSupportedError):
        raise
    # UnicodeDecodeError: SQLite's own message quotes bytes of a damaged schema.
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        # The low byte is SQLite's primary result code; the rest says where in SQLite it came up.
        match getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF:
            case sqlite3.SQLITE_FULL:
                raise Interrupted(f"no space left for {path}: free some, and run again") from error
            case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
                raise Interrupted(f"another process holds {path}: run again when it is done") from error
            case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH:
                raise ConfigurationError(
                    f"{path} cannot be opened ({error}): it must be a file, and it and its folder writable, for "
                    "readers too; move away what is there in its place"
                ) from error
        raise damaged(" ".join(str(error).split())) from error  # of a damaged schema SQLite quotes the statement
