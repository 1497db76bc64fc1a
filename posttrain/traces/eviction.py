"""Evicts episodes from a full trace store: those of the oldest run first, and within a run the
oldest."""

import json
import sqlite3
from collections.abc import Iterable

from posttrain.runtime.sqlite import transaction
from posttrain.traces.store import damaged

_TARGET_FRAC = 0.9  # of the limit is left: a store at its limit would otherwise delete something at every step
_CHUNK = 500  # episodes deleted in one transaction, for which other writers wait


def make_room(connection: sqlite3.Connection, *, max_bytes: int, running: int | None = None) -> int:
    """Delete episodes until nine tenths of `max_bytes` are in use, where the file is larger;
    returns how many were deleted. The run `running` goes last."""
    if file_bytes(connection) <= max_bytes:
        return 0
    num_deleted = 0
    oldest_first = "SELECT id FROM runs ORDER BY id IS ?, started_at, id"
    for run in _ids(connection.execute(oldest_first, (running,))):
        while _used_bytes(connection) > _TARGET_FRAC * max_bytes and (chunk := _delete_chunk(connection, run)):
            num_deleted += chunk
    delete_orphans(connection, running=running)
    shrink(connection, max_bytes=max_bytes)
    return num_deleted


def delete_old_runs(connection: sqlite3.Connection, *, num_kept: int) -> int:
    """Delete all runs of each stage but the newest `num_kept`; returns how many episodes were
    deleted."""
    ranked = "SELECT id, row_number() OVER (PARTITION BY stage ORDER BY started_at DESC, id DESC) AS rank FROM runs"
    num_deleted = 0
    for run in _ids(connection.execute(f"SELECT id FROM ({ranked}) WHERE rank > ?", (num_kept,))):
        while chunk := _delete_chunk(connection, run):
            num_deleted += chunk
    delete_orphans(connection)
    return num_deleted


def delete_orphans(connection: sqlite3.Connection, *, running: int | None = None) -> None:
    """Delete tasks, tools and runs to which no episode refers. A run that still writes puts its own
    row back."""
    with transaction(connection):
        connection.execute("DELETE FROM tasks WHERE id NOT IN (SELECT task FROM episodes)")
        # EXISTS walks the index of calls by tool; NOT IN would read all calls.
        connection.execute("DELETE FROM tools WHERE NOT EXISTS (SELECT 1 FROM calls WHERE tool = tools.id)")
        connection.execute(
            "DELETE FROM runs WHERE id IS NOT ? AND NOT EXISTS (SELECT 1 FROM episodes WHERE run = runs.id)", (running,)
        )


def shrink(connection: sqlite3.Connection, *, max_bytes: int = 0) -> None:
    """Give free pages back to the disk until the file has `max_bytes`; with 0 all of them."""
    num_excess = _pragma(connection, "page_count") - max_bytes // _pragma(connection, "page_size")
    if num_excess > 0:
        # `execute` would free one or two pages: the pragma frees one at each step of its statement.
        connection.executescript(f"PRAGMA incremental_vacuum({num_excess})")
    # PASSIVE waits for no reader; where one is in the way, the last connection to close does it.
    connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()


def file_bytes(connection: sqlite3.Connection) -> int:
    """Size of the store once its write-ahead log is written back."""
    return _pragma(connection, "page_count") * _pragma(connection, "page_size")


def _used_bytes(connection: sqlite3.Connection) -> int:
    return file_bytes(connection) - _pragma(connection, "freelist_count") * _pragma(connection, "page_size")


def _delete_chunk(connection: sqlite3.Connection, run: int) -> int:
    """Delete the run's first episodes; returns how many, 0 when none is left."""
    first = "SELECT id FROM episodes WHERE run = ? ORDER BY number LIMIT ?"
    episodes = _ids(connection.execute(first, (run, _CHUNK)))
    with transaction(connection):
        for table, column in (("calls", "episode"), ("turns", "episode"), ("bodies", "episode"), ("episodes", "id")):
            deletion = f"DELETE FROM {table} WHERE {column} IN (SELECT value FROM json_each(?))"
            num_deleted = connection.execute(deletion, (json.dumps(episodes),)).rowcount
    if episodes and not num_deleted:
        # A damaged index names rows that are not there, and would name them again for ever.
        [(file,)] = connection.execute("SELECT file FROM pragma_database_list WHERE name = 'main'")
        raise damaged(file, "the index of episodes names rows that are not there")
    return len(episodes)


def _ids(rows: Iterable[tuple[int]]) -> list[int]:
    return [number for (number,) in rows]


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])
