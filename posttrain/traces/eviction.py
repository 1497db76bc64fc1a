"""Evicts episodes from a full trace store: those of the oldest run first, and within a run the
oldest."""

import json
import sqlite3

from posttrain.runtime.sqlite import transaction

_TARGET_FRAC = 0.9  # of the limit is left: a store at its limit would otherwise delete something at every step
_CHUNK = 500  # episodes deleted in one transaction, for which other writers wait


def make_room(connection: sqlite3.Connection, *, max_bytes: int) -> int:
    """Delete episodes until nine tenths of `max_bytes` are in use, where the file is larger, and
    shrink the file; returns how many were deleted. Runs, tasks and tools that no episode needs any
    more go too: a run that still writes puts its own row back."""
    if file_bytes(connection) <= max_bytes:
        return 0
    num_deleted = 0
    for (run,) in connection.execute("SELECT id FROM runs ORDER BY started_at, id").fetchall():
        while _used_bytes(connection) > _TARGET_FRAC * max_bytes and (chunk := _delete_chunk(connection, run)):
            num_deleted += chunk
    with transaction(connection):
        connection.execute("DELETE FROM tasks WHERE id NOT IN (SELECT task FROM episodes)")
        connection.execute("DELETE FROM runs WHERE NOT EXISTS (SELECT 1 FROM episodes WHERE run = runs.id)")
    num_excess = _pragma(connection, "page_count") - max_bytes // _pragma(connection, "page_size")
    # `execute` would free one or two pages: the pragma frees one at each step of its statement.
    connection.executescript(f"PRAGMA incremental_vacuum({max(num_excess, 1)})")
    # PASSIVE waits for no reader; where one is in the way, the last connection to close does it.
    connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
    return num_deleted


def file_bytes(connection: sqlite3.Connection) -> int:
    """Size of the store once its write-ahead log is written back."""
    return _pragma(connection, "page_count") * _pragma(connection, "page_size")


def _used_bytes(connection: sqlite3.Connection) -> int:
    return file_bytes(connection) - _pragma(connection, "freelist_count") * _pragma(connection, "page_size")


def _delete_chunk(connection: sqlite3.Connection, run: int) -> int:
    """Delete the run's first episodes; returns how many, 0 when none is left."""
    first = "SELECT id FROM episodes WHERE run = ? ORDER BY number LIMIT ?"
    episodes = json.dumps([episode for (episode,) in connection.execute(first, (run, _CHUNK))])
    num_deleted = 0  # counted, because a damaged index may name rows that are not there
    with transaction(connection):
        for table, column in (("calls", "episode"), ("bodies", "episode"), ("episodes", "id")):
            deletion = f"DELETE FROM {table} WHERE {column} IN (SELECT value FROM json_each(?))"
            num_deleted = connection.execute(deletion, (episodes,)).rowcount
    return num_deleted


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])
