"""A job's traces come back: its store is read as a copy, and the episodes that are not here yet are
added under new ids.

The copy is why the file may lie on a network mount: SQLite never opens it there. The last episodes
of a job that was killed are in the write-ahead log beside the file, which is copied too.
"""

import contextlib
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

from posttrain.runtime.exits import DataError
from posttrain.runtime.sqlite import transaction
from posttrain.traces.integrity import damaged, episode_checksum, problems, read_narrow, refuse_lost
from posttrain.traces.schema import BODY, EPISODE, RUN, TASK, TURN
from posttrain.traces.store import open_to_write, typed_errors

# Tables whose rows several episodes refer to: what makes a row the same here and there, and its
# columns after the id.
_SHARED = (
    ("runs", "uid", f"{RUN}, checksum"),
    ("tasks", "digest", f"{TASK}, checksum"),
    ("tools", "name", "name, checksum"),
)
_WITHOUT_NUMBER = EPISODE.removeprefix("number, ")


def import_store(path: Path, other: Path) -> int:
    """Gives how many episodes of `other` were added to the store at `path`; those that came before
    are not added again.

    Raises DataError where `other` is absent, damaged or no trace store, and what `open_to_write`
    raises about either.
    """
    if not other.is_file():
        raise DataError(f"{other} is not a file; name the traces.db that the other machine wrote")
    with contextlib.closing(open_to_write(path)) as connection, _copy(other, beside=path) as copy:
        _refuse_damaged(other, copy)
        with typed_errors(path):
            connection.execute("ATTACH ? AS other", (str(copy),))
            refuse_lost(connection)  # its own rows, before others come to them
            runs = [run for (run,) in connection.execute("SELECT id FROM other.runs ORDER BY started_at, id")]
            return sum(_import_run(connection, run) for run in runs)


@contextlib.contextmanager
def _copy(other: Path, *, beside: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=beside.parent, prefix=".import-") as folder:
        copy = Path(folder) / "traces.db"
        shutil.copyfile(other, copy)
        log = other.with_name(f"{other.name}-wal")
        if log.exists():
            shutil.copyfile(log, copy.with_name(f"{copy.name}-wal"))
        yield copy


def _refuse_damaged(other: Path, copy: Path) -> None:
    """Opens the copy, which writes the log beside it back."""
    try:
        with contextlib.closing(open_to_write(copy)) as connection, typed_errors(copy):
            found = next(problems(connection), None)
    except DataError as error:
        found = str(error.__cause__ or "it has not a store's tables")
    if found is not None:
        raise DataError(
            f"{other} is damaged, cut off or no trace store ({found}), nothing was imported: "
            "copy it again from where it was written"
        )


def _import_run(connection: sqlite3.Connection, run: int) -> int:
    """In one transaction: other writers wait for a run, not for a store."""
    execute = connection.execute
    with transaction(connection):
        for table, unique, columns in _SHARED:
            missing = f"SELECT {columns} FROM other.{table} WHERE {unique} NOT IN (SELECT {unique} FROM main.{table})"
            execute(f"INSERT INTO main.{table} ({columns}) {missing}")
        (own_run,) = execute(
            "SELECT id FROM main.runs WHERE uid = (SELECT uid FROM other.runs WHERE id = ?)", (run,)
        ).fetchone()
        (last,) = execute("SELECT coalesce(max(seq), 0) FROM main.sqlite_sequence WHERE name = 'episodes'").fetchone()
        execute("DROP TABLE IF EXISTS temp.moved")
        execute("CREATE TEMP TABLE moved (old INTEGER, new INTEGER PRIMARY KEY, checksum INTEGER)")
        absent = (
            "SELECT id FROM other.episodes WHERE run = ? AND number NOT IN (SELECT number FROM main.episodes "
            "WHERE run = "
            "?) ORDER BY number"
        )
        moved = [(old, new) for new, (old,) in enumerate(execute(absent, (run, own_run)).fetchall(), start=last + 1)]
        connection.executemany(
            "INSERT INTO moved VALUES (?, ?, ?)", [(old, new, _checksum(connection, old, new)) for old, new in moved]
        )
        of_moved = "FROM temp.moved m JOIN other"
        execute(
            f"INSERT INTO main.episodes (id, run, number, task, {_WITHOUT_NUMBER}, checksum) "
            f"SELECT m.new, ?, o.number, own.id, {_WITHOUT_NUMBER}, m.checksum {of_moved}.episodes o "
            "ON o.id = m.old JOIN other.tasks t ON t.id = o.task JOIN main.tasks own ON own.digest = t.digest",
            (own_run,),
        )
        execute(
            f"INSERT INTO main.bodies (episode, {BODY}, checksum) SELECT m.new, {BODY}, "
            f"o.checksum {of_moved}.bodies o ON o.episode = m.old"
        )
        execute(
            f"INSERT INTO main.turns (episode, {TURN}) SELECT m.new, {TURN} {of_moved}.turns o ON o.episode = m.old"
        )
        execute(
            "INSERT INTO main.calls SELECT m.new, o.number, o.turn, own.id, o.outcome, o.num_attempts, "
            f"o.latency_s, o.call_id {of_moved}.calls o "
            "ON o.episode = m.old JOIN other.tools t ON t.id = o.tool JOIN main.tools own ON own.name = t.name"
        )
    return len(moved)


def _checksum(connection: sqlite3.Connection, old: int, new: int) -> int:
    """Of the narrow row under its new number; who reads it verifies the old one."""
    narrow = read_narrow(connection, old, schema="other")
    if narrow is None:
        raise damaged(connection, f"the place of episode {old}", schema="other")
    return episode_checksum(new, narrow.run[0], narrow.task[0], narrow.episode)
