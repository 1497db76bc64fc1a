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

from posttrain.runtime.exits import DataError
from posttrain.runtime.sqlite import transaction
from posttrain.traces.store import damaged, open_to_write, typed_errors

# Tables whose rows several episodes share: the column that identifies a row in any store, and all
# columns but the id.
_SHARED = (
    ("runs", "uid", "uid, stage, key, started_at, settings"),
    ("tasks", "digest", "digest, task_id, cell, content"),
)
_FILTERS = "step, part, is_failed, is_success, stop_reason, reward, advantage, num_turns"


def import_store(path: Path, other: Path) -> int:
    """Add the episodes of `other` to the store at `path`; returns how many were new. Raises
    DataError about `other`, and as `open_to_write` about `path`."""
    if not other.is_file():
        raise DataError(f"{other} is not a file; name the traces.db that the other machine wrote")
    try:
        with (
            contextlib.closing(open_to_write(path)) as connection,
            _copy(other, beside=path) as copy,
            typed_errors(path),
        ):
            connection.execute("ATTACH ? AS other", (str(copy),))
            runs = [run for (run,) in connection.execute("SELECT id FROM other.runs ORDER BY started_at, id")]
            return sum(_import_run(connection, run) for run in runs)
    except DataError as error:
        raise DataError(f"{other} cannot be imported, copy it again from where it was written: {error}") from error


@contextlib.contextmanager
def _copy(other: Path, *, beside: Path) -> Iterator[Path]:
    """A copy that passes SQLite's check; to open it writes its log back."""
    with tempfile.TemporaryDirectory(dir=beside.parent, prefix=".import-") as folder:
        copy = Path(folder) / other.name
        shutil.copyfile(other, copy)
        log = other.with_name(f"{other.name}-wal")
        if log.exists():
            shutil.copyfile(log, copy.with_name(log.name))
        with contextlib.closing(open_to_write(copy)) as connection, typed_errors(copy):
            (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if found != "ok":
                raise damaged(copy, found)
        yield copy


def _import_run(connection: sqlite3.Connection, run: int) -> int:
    """Import one run in one transaction: other writers wait for a run, not for a whole store."""
    execute = connection.execute
    with transaction(connection):
        for table, unique, columns in _SHARED:
            missing = f"SELECT {columns} FROM other.{table} WHERE {unique} NOT IN (SELECT {unique} FROM main.{table})"
            execute(f"INSERT INTO main.{table} ({columns}) {missing}")
        own = "SELECT id FROM main.runs WHERE uid = (SELECT uid FROM other.runs WHERE id = ?)"
        (own_run,) = execute(own, (run,)).fetchone()
        # New ids lie above all that this store has given out, in the order of the old ones.
        last = "SELECT coalesce(max(seq), 0) FROM main.sqlite_sequence WHERE name = 'episodes'"
        (offset,) = execute(f"SELECT ({last}) + 1 - min(id) FROM other.episodes WHERE run = ?", (run,)).fetchone()
        new = "run = :run AND number NOT IN (SELECT number FROM main.episodes WHERE run = :own)"
        values = {"run": run, "own": own_run, "offset": offset}
        for table, columns in (("bodies", "content, token_ids, mask, logprobs"), ("calls", "tool, outcome")):
            execute(
                f"INSERT INTO main.{table} SELECT episode + :offset, {columns} FROM other.{table} "
                f"WHERE episode IN (SELECT id FROM other.episodes WHERE {new})",
                values,
            )
        return execute(  # last: the others ask which are not here yet
            f"INSERT INTO main.episodes SELECT o.id + :offset, :own, number, own.id, {_FILTERS} "
            "FROM other.episodes o JOIN other.tasks t ON t.id = o.task JOIN main.tasks own ON own.digest = t.digest "
            f"WHERE {new}",
            values,
        ).rowcount
