"""What is read is held against what was recorded: rows carry a CRC-32 of their content, and each
run what its episodes add up to.

SQLite notices a page that makes no sense, not one whose bytes are others. A checksum has what a row
points to by its content (a run's uid, a task's digest, a tool's name), so that a row that has come
under another is noticed. What is shown, exported, replayed or imported is verified; a filter looks
at columns as they stand, because to verify a million turns takes longer than to search them: of
those it leaves out only the sums are verified, and `posttrain traces check` verifies all.
"""

import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from posttrain.runtime.exits import DataError
from posttrain.traces.schema import BODY, EPISODE, RUN, TASK, TURN

Row = tuple[Any, ...]
_CALLS = """
SELECT c.number, turn, t.name, outcome, num_attempts, latency_s, call_id
FROM {schema}.calls c LEFT JOIN {schema}.tools t ON t.id = c.tool
WHERE episode = ? ORDER BY c.number
"""
_SUMS = (
    "count(*), coalesce(sum(num_turns), 0), coalesce(sum(is_failed), 0), coalesce(sum(step), 0), "
    "coalesce(sum(checksum), 0)"
)
_KEPT = {
    "checksum": "sum_checksums",
    "num_turns": "num_turns",
    "is_failed": "num_failed",
    "step": "sum_steps",
}  # what adds up to which tally
_TALLIES = "num_episodes, num_turns, num_failed, sum_steps, sum_checksums"
REMEDY = (
    "move the file away, and the next stage begins a new one; episodes are records for people, "
    "no result depends on them"
)


class DamagedStore(DataError):
    """`what` in the store is not what was recorded."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(f"{path} is damaged: {what} is not what was recorded ({REMEDY})")
        self.what = f"{what} is not what was recorded"


@dataclass(frozen=True, slots=True)
class NarrowRows:
    """What a list shows of an episode: the rows of episode, run and task, without ids, and the
    run's number."""

    run_number: int
    episode: Row
    run: Row
    task: Row


@dataclass(frozen=True, slots=True)
class EpisodeRows:
    """All that is stored of an episode; a call's tool is its name."""

    narrow: NarrowRows
    body: Row
    turns: list[Row]
    calls: list[Row]


def checksum(*values: Any) -> int:
    """CRC-32 of values as SQLite gives them back: None, int, float, str, bytes."""
    plain = [("bytes", len(value)) if isinstance(value, bytes) else value for value in values]
    found = zlib.crc32(repr(plain).encode("utf-8", "surrogatepass"))
    for value in values:
        if isinstance(value, bytes):
            found = zlib.crc32(value, found)
    return found


def episode_checksum(episode_id: int, run_uid: str, task_digest: bytes, episode: Sequence[Any]) -> int:
    """Of the narrow row under its number."""
    return checksum(episode_id, run_uid, task_digest, *episode)


def body_checksum(run_uid: str, number: int, body: Sequence[Any], turns: Sequence[Row], calls: Sequence[Row]) -> int:
    """Of the rest of the run's episode `number`."""
    return checksum(run_uid, number, *body, len(turns), *chain.from_iterable(turns), *chain.from_iterable(calls))


def read_narrow(connection: sqlite3.Connection, episode_id: int, *, schema: str = "main") -> NarrowRows | None:
    """Verified; None where there is no such episode (any more). Raises DataError where it is not
    what was recorded."""
    found = _row(
        connection,
        f"SELECT e.run, {EPISODE}, e.checksum, {RUN}, r.checksum, {TASK}, t.checksum FROM {schema}.episodes e "
        f"LEFT JOIN {schema}.runs r ON r.id = e.run LEFT JOIN {schema}.tasks t ON t.id = e.task WHERE e.id = ?",
        episode_id,
    )
    if found is None:
        _refuse_hidden(connection, episode_id, schema)
        return None
    (run_number, *rest), sealed = found, []
    for columns in (EPISODE, RUN, TASK):
        size = columns.count(",") + 1
        sealed.append((tuple(rest[:size]), rest[size]))
        rest = rest[size + 1 :]
    (episode, of_episode), (run, of_run), (task, of_task) = sealed
    if of_run != checksum(*run):
        raise damaged(connection, f"the run of episode {episode_id}", schema=schema)
    if of_task != checksum(*task):
        raise damaged(connection, f"the task of episode {episode_id}", schema=schema)
    if of_episode != episode_checksum(episode_id, run[0], task[0], episode):
        raise damaged(connection, f"episode {episode_id}", schema=schema)
    return NarrowRows(run_number, episode, run, task)


def read_rows(connection: sqlite3.Connection, episode_id: int, *, schema: str = "main") -> EpisodeRows | None:
    """As `read_narrow`, with body, turns and calls."""
    narrow = read_narrow(connection, episode_id, schema=schema)
    if narrow is None:
        return None
    body, turns, calls, sealed = _wide(connection, episode_id, schema)
    if body is None or sealed != body_checksum(narrow.run[0], narrow.episode[0], body, turns, calls):
        raise damaged(connection, f"the conversation of episode {episode_id}", schema=schema)
    return EpisodeRows(narrow, body, turns, calls)


def refuse_lost(connection: sqlite3.Connection, *columns: str) -> None:
    """Raises DataError where the episodes do not add up to what was recorded: some are lost or
    there twice, or one of `columns` (num_turns, is_failed, step) is another. Each column takes some
    milliseconds of a million turns."""
    names = ("checksum", *columns)
    added, kept = (
        ", ".join(f"coalesce(sum({name}), 0)" for name in sums) for sums in (names, [_KEPT[name] for name in names])
    )
    pairs = (
        f"SELECT (SELECT count(*), {added} FROM episodes NOT INDEXED) IS (SELECT coalesce(sum(num_episodes), 0), "
        f"{kept} FROM tallies)"
    )
    ((is_whole,),) = connection.execute(pairs)
    if not is_whole:
        raise damaged(connection, "the table of episodes")


def verified_runs(connection: sqlite3.Connection) -> list[tuple[int, Row, Row]]:
    """Number, row and sums (episodes, turns, failed, …) of every run of which an episode is
    left."""
    sums = {
        run: tuple(found)
        for run, *found in connection.execute(f"SELECT run, {_SUMS} FROM episodes NOT INDEXED GROUP BY run")
    }
    kept = {
        run: tuple(found)
        for run, *found in connection.execute(f"SELECT run, {_TALLIES} FROM tallies WHERE num_episodes")
    }
    if sums != kept:
        raise damaged(connection, "the table of episodes")
    rows = {
        run: (tuple(row), sealed) for run, *row, sealed in connection.execute(f"SELECT id, {RUN}, checksum FROM runs")
    }
    for run in sums:
        if run not in rows or rows[run][1] != checksum(*rows[run][0]):
            raise damaged(connection, f"run {run}")
    return [(run, rows[run][0], sums[run]) for run in sums]


def refuse_damaged_tools(connection: sqlite3.Connection) -> None:
    """Raises DataError where a tool's name is not the recorded one: nobody would have called it."""
    if any(sealed != checksum(name) for name, sealed in connection.execute("SELECT name, checksum FROM tools")):
        raise damaged(connection, "the name of a tool")


def problems(connection: sqlite3.Connection) -> Iterator[str]:
    """Verify everything, index against table too; a line for each problem."""
    for (found,) in connection.execute("PRAGMA integrity_check(20)"):
        if found != "ok":
            yield str(found)
    for verify in (refuse_lost, verified_runs, refuse_damaged_tools):
        try:
            verify(connection)
        except DamagedStore as error:
            yield error.what
    for (episode_id,) in connection.execute("SELECT id FROM episodes"):
        try:
            read_rows(connection, episode_id)
        except DamagedStore as error:
            yield error.what


def seal_all(connection: sqlite3.Connection) -> None:
    """Give every row of a store that had none its checksum, as it stands now."""
    for table, columns in (("runs", RUN), ("tasks", TASK)):
        rows = connection.execute(f"SELECT id, {columns} FROM {table}").fetchall()
        connection.executemany(
            f"UPDATE {table} SET checksum = ? WHERE id = ?", [(checksum(*row), number) for number, *row in rows]
        )
    names = connection.execute("SELECT id, name FROM tools").fetchall()
    connection.executemany(
        "UPDATE tools SET checksum = ? WHERE id = ?", [(checksum(name), number) for number, name in names]
    )
    joined = (
        f"SELECT e.id, r.uid, t.digest, {EPISODE} FROM episodes e JOIN runs r ON r.id = e.run JOIN tasks t ON t.id = "
        "e.task"
    )
    for episode_id, uid, digest, *episode in connection.execute(joined).fetchall():
        connection.execute(
            "UPDATE episodes SET checksum = ? WHERE id = ?",
            (episode_checksum(episode_id, uid, digest, episode), episode_id),
        )
        body, turns, calls, _ = _wide(connection, episode_id, "main")
        if body is not None:
            sealed = body_checksum(uid, episode[0], body, turns, calls)
            connection.execute("UPDATE bodies SET checksum = ? WHERE episode = ?", (sealed, episode_id))
    connection.execute("DELETE FROM tallies")
    connection.execute(f"INSERT INTO tallies SELECT run, {_SUMS} FROM episodes GROUP BY run")


def damaged(connection: sqlite3.Connection, what: str, *, schema: str = "main") -> DamagedStore:
    """The end of who reads on: `what` is not as it was recorded."""
    files = dict(connection.execute("SELECT name, file FROM pragma_database_list"))
    return DamagedStore(files[schema], what)


def _wide(connection: sqlite3.Connection, episode_id: int, schema: str) -> tuple[Row | None, list[Row], list[Row], Any]:
    found = _row(connection, f"SELECT {BODY}, checksum FROM {schema}.bodies WHERE episode = ?", episode_id)
    turns = connection.execute(
        f"SELECT {TURN} FROM {schema}.turns WHERE episode = ? ORDER BY number", (episode_id,)
    ).fetchall()
    calls = connection.execute(_CALLS.format(schema=schema), (episode_id,)).fetchall()
    return (None, turns, calls, None) if found is None else (found[:-1], turns, calls, found[-1])


def _row(connection: sqlite3.Connection, statement: str, episode_id: int) -> Row | None:
    row: Row | None = connection.execute(statement, (episode_id,)).fetchone()
    return row


def _refuse_hidden(connection: sqlite3.Connection, episode_id: int, schema: str) -> None:
    """A damaged inner page hides rows from who asks for them by number and not from who looks at
    all."""
    if connection.execute(f"SELECT 1 FROM {schema}.episodes NOT INDEXED WHERE +id = ?", (episode_id,)).fetchone():
        raise damaged(connection, f"the place of episode {episode_id}", schema=schema)
