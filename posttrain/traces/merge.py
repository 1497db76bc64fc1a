"""Imports another trace store, such as a job's: episodes that are not here yet are added under new
ids.

The other store is read as a copy, so it may lie on a network mount: SQLite never opens it there.
The last episodes of a job that was killed are in the write-ahead log beside the file, which is
copied too.
"""

import contextlib
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

from posttrain.runtime.exits import ConfigurationError, DataError
from posttrain.runtime.sqlite import transaction
from posttrain.traces.schema import BODY, EPISODE, RUN, TASK, TURN
from posttrain.traces.store import open_to_write, quick_check, typed_errors

# Tables whose rows several episodes share: the column that identifies a row in any store, and all
# columns but the id.
_SHARED = (("runs", "uid", RUN), ("tasks", "digest", TASK), ("tools", "name", "name"))
_WITHOUT_NUMBER = EPISODE.removeprefix("number, ")


def import_store(path: Path, other: Path) -> int:
    """Add the episodes of `other` to the store at `path`; returns how many were new.

    Raises DataError where `other` is absent, damaged or no trace store, and as `open_to_write`
    about either.
    """
    if not other.is_file():
        raise DataError(f"{other} is not a file; name the traces.db that the other machine wrote")
    with contextlib.closing(open_to_write(path)) as connection, _copy(other, beside=path) as copy:
        _refuse_damaged(other, copy)
        with typed_errors(path):
            connection.execute("ATTACH ? AS other", (str(copy),))
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
    """Raises DataError where the copy fails SQLite's check; to open it writes its log back."""
    try:
        with contextlib.closing(open_to_write(copy)) as connection, typed_errors(copy):
            found = next(iter(quick_check(connection)), None)
    except ConfigurationError as error:  # another version
        raise ConfigurationError(str(error).replace(str(copy), str(other))) from error
    except DataError as error:
        found = str(error.__cause__ or "it has not a store's tables")
    if found is not None:
        raise DataError(
            f"{other} is damaged, cut off or no trace store ({found}), nothing was imported: "
            "copy it again from where it was written"
        )


def _import_run(connection: sqlite3.Connection, run: int) -> int:
    """Import one run in one transaction: other writers wait for a run, not for a whole store."""
    execute = connection.execute
    with transaction(connection):
        for table, unique, columns in _SHARED:
            missing = f"SELECT {columns} FROM other.{table} WHERE {unique} NOT IN (SELECT {unique} FROM main.{table})"
            execute(f"INSERT INTO main.{table} ({columns}) {missing}")
        own = "SELECT id FROM main.runs WHERE uid = (SELECT uid FROM other.runs WHERE id = ?)"
        (own_run,) = execute(own, (run,)).fetchone()
        (last,) = execute("SELECT coalesce(max(seq), 0) FROM main.sqlite_sequence WHERE name = 'episodes'").fetchone()
        # Old and new ids, so that the other tables are copied by joins.
        execute("DROP TABLE IF EXISTS temp.moved")
        execute("CREATE TEMP TABLE moved (old INTEGER, new INTEGER PRIMARY KEY)")
        new = (
            "SELECT id FROM other.episodes WHERE run = ? "
            "AND number NOT IN (SELECT number FROM main.episodes WHERE run = ?) ORDER BY number"
        )
        moved = [(old, number) for number, (old,) in enumerate(execute(new, (run, own_run)).fetchall(), start=last + 1)]
        connection.executemany("INSERT INTO moved VALUES (?, ?)", moved)
        from_other = "FROM temp.moved m JOIN other"
        execute(
            f"INSERT INTO main.episodes (id, run, number, task, {_WITHOUT_NUMBER}) "
            f"SELECT m.new, ?, o.number, own.id, {_WITHOUT_NUMBER} {from_other}.episodes o ON o.id = m.old "
            "JOIN other.tasks t ON t.id = o.task JOIN main.tasks own ON own.digest = t.digest",
            (own_run,),
        )
        for table, columns in (("bodies", BODY), ("turns", TURN)):
            execute(
                f"INSERT INTO main.{table} (episode, {columns}) "
                f"SELECT m.new, {columns} {from_other}.{table} o ON o.episode = m.old"
            )
        execute(
            "INSERT INTO main.calls SELECT m.new, o.number, o.turn, own.id, o.outcome, o.num_attempts, o.latency_s, "
            f"o.call_id {from_other}.calls o ON o.episode = m.old "
            "JOIN other.tools t ON t.id = o.tool JOIN main.tools own ON own.name = t.name"
        )
    return len(moved)
