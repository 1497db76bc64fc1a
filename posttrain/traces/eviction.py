"""When the store is full, the episodes go that belong to the oldest run, and of a run that fills
the store alone those of its oldest steps."""

import json
import sqlite3

from posttrain.runtime.sqlite import transaction
from posttrain.traces.integrity import damaged

_TARGET_FRAC = 0.9  # of the limit is left: a store at its limit would otherwise delete something at every step
_CHUNK = 500  # episodes deleted in one transaction, for which other writers wait


def make_room(connection: sqlite3.Connection, *, max_bytes: int, running: int | None = None) -> int:
    """Delete until nine tenths of `max_bytes` are in use, where the file is larger; gives how many
    episodes went. The run `running` goes last."""
    if file_bytes(connection) <= max_bytes:
        return 0
    num_deleted, deleted = 0, [0]
    while _used_bytes(connection) > _TARGET_FRAC * max_bytes and (oldest := _oldest(connection, running)):
        deleted = _delete_anew(connection, oldest, deleted)
        num_deleted += len(oldest)
    forget_orphans(connection, running=running)
    shrink(connection, max_bytes=max_bytes)
    return num_deleted


def forget_runs(connection: sqlite3.Connection, *, num_kept: int) -> int:
    """Delete all runs of each stage but the newest `num_kept`; gives how many episodes went."""
    ranked = "SELECT id, row_number() OVER (PARTITION BY stage ORDER BY started_at DESC, id DESC) AS rank FROM runs"
    runs = [run for (run,) in connection.execute(f"SELECT id FROM ({ranked}) WHERE rank > ?", (num_kept,))]
    num_deleted, deleted = 0, [0]
    for run in runs:
        while oldest := _first_episodes(connection, run):
            deleted = _delete_anew(connection, oldest, deleted)
            num_deleted += len(oldest)
    forget_orphans(connection)
    return num_deleted


def forget_orphans(connection: sqlite3.Connection, *, running: int | None = None) -> None:
    """Delete what no episode refers to. A run that still writes puts its own row back."""
    with transaction(connection):
        connection.execute("DELETE FROM tasks WHERE id NOT IN (SELECT task FROM episodes)")
        connection.execute("DELETE FROM tools WHERE NOT EXISTS (SELECT 1 FROM calls WHERE tool = tools.id)")
        connection.execute("DELETE FROM tallies WHERE num_episodes = 0")
        connection.execute(
            "DELETE FROM runs WHERE id IS NOT ? AND NOT EXISTS (SELECT 1 FROM episodes WHERE run = runs.id)", (running,)
        )


def shrink(connection: sqlite3.Connection, *, max_bytes: int = 0) -> None:
    """Give pages without content back to the disk until the file has `max_bytes`; with 0 all of
    them."""
    page_size = _pragma(connection, "page_size")
    num_excess = _pragma(connection, "page_count") - max_bytes // page_size
    if num_excess > 0:
        connection.executescript(
            f"PRAGMA incremental_vacuum({num_excess})"
        )  # a page at each step; `execute` takes one or two
    connection.execute(
        "PRAGMA wal_checkpoint(PASSIVE)"
    ).fetchall()  # waits for no reader; where one is in the way, the last to close does it


def file_bytes(connection: sqlite3.Connection) -> int:
    """Of the store, once its write-ahead log is written back."""
    return _pragma(connection, "page_count") * _pragma(connection, "page_size")


def _used_bytes(connection: sqlite3.Connection) -> int:
    return file_bytes(connection) - _pragma(connection, "freelist_count") * _pragma(connection, "page_size")


def _oldest(connection: sqlite3.Connection, running: int | None) -> list[int]:
    order = (
        "SELECT id FROM runs WHERE EXISTS (SELECT 1 FROM episodes WHERE run = runs.id) ORDER BY id IS ?, started_at, "
        "id LIMIT 1"
    )
    row = connection.execute(order, (running,)).fetchone()
    return _first_episodes(connection, row[0]) if row else []


def _first_episodes(connection: sqlite3.Connection, run: int) -> list[int]:
    return [
        episode
        for (episode,) in connection.execute(
            "SELECT id FROM episodes WHERE run = ? ORDER BY number LIMIT ?", (run, _CHUNK)
        )
    ]


def _delete_anew(connection: sqlite3.Connection, episodes: list[int], deleted: list[int]) -> list[int]:
    """Gives `episodes`, for the next call. Raises DataError where they were deleted before: a
    damaged index would name them for ever."""
    if episodes == deleted:
        raise damaged(connection, "the index of episodes")
    _delete(connection, episodes)
    return episodes


def _delete(connection: sqlite3.Connection, episodes: list[int]) -> None:
    with transaction(connection):
        for table, column in (("calls", "episode"), ("turns", "episode"), ("bodies", "episode"), ("episodes", "id")):
            connection.execute(
                f"DELETE FROM {table} WHERE {column} IN (SELECT value FROM json_each(?))", (json.dumps(episodes),)
            )


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])
