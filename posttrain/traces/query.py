"""Finds the episodes that a person asks for. A filter becomes one statement over the narrow table;
nothing here reads a body or loads a library."""

import difflib
import re
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from posttrain.runtime.exits import ConfigurationError
from posttrain.traces.integrity import NarrowRows, damaged, read_narrow, refuse_damaged_tools, verified_runs
from posttrain.traces.schema import EPISODE


@dataclass(frozen=True, slots=True)
class EpisodeFilter:
    """Conditions that an episode meets all of; None and False ask nothing.

    `stage` is `evaluate@sft`, or `evaluate` for all its items. `steps` are the first and the last,
    both included. `task_id` may be its beginning. `tool` was called, and `tool_outcome` (`ok`,
    `error`, `timeout`, `failed`) is how a call of it, or of any where no tool is named, ended.
    """

    stage: str | None = None
    run: int | None = None
    part: str | None = None
    is_failed: bool = False
    tool: str | None = None
    tool_outcome: str | None = None
    steps: tuple[int, int] | None = None
    task_id: str | None = None
    stop_reason: str | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """One episode in a list."""

    episode_id: int
    run: int
    stage: str
    part: str
    step: int | None
    task_id: str
    cell: str
    num_turns: int
    is_success: bool | None
    is_failed: bool
    stop_reason: str
    reward: float | None
    advantage: float | None


@dataclass(frozen=True, slots=True)
class RunLine:
    """One run in a list."""

    run: int
    stage: str
    key: str
    started_at: float
    num_episodes: int
    num_turns: int
    num_failed: int


def parse_steps(text: str | None) -> tuple[int, int] | None:
    """`20..30`, or `20` for that step alone; None where nothing is asked. Raises ConfigurationError
    for anything else."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d+)(?:\.\.(\d+))?", text.strip())
    steps = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
    if steps[0] > steps[1]:
        raise ConfigurationError(
            f"--step is {text!r}; it is one step (20), or the first and the last of several (20..30)"
        )
    return steps


def matching(connection: sqlite3.Connection, wanted: EpisodeFilter, *, limit: int | None = None) -> list[int]:
    """The ids of the last `limit` recorded episodes that match, newest first; of all without a
    limit."""
    where, values = _conditions(wanted)
    rows = connection.execute(
        f"SELECT e.id FROM episodes e WHERE {where} ORDER BY e.id DESC LIMIT ?",
        (*values, -1 if limit is None else limit),
    )
    return [episode for (episode,) in rows]


def count_matching(connection: sqlite3.Connection, wanted: EpisodeFilter) -> int:
    """How many episodes match."""
    where, values = _conditions(wanted)
    return int(connection.execute(f"SELECT count(*) FROM episodes e WHERE {where}", values).fetchone()[0])


def lines(connection: sqlite3.Connection, episodes: Sequence[int], wanted: EpisodeFilter | None = None) -> list[Line]:
    """In the order of the ids, verified; those that are not there any more are left out. Raises
    DataError where something is not what was recorded, also that it called what `wanted` asks
    for."""
    found = []
    for episode_id in episodes:
        if (rows := read_narrow(connection, episode_id)) is not None:
            found.append(_line(episode_id, rows))
            if wanted is not None and not _has_called(connection, episode_id, wanted):
                raise damaged(connection, f"that episode {episode_id} called {wanted.tool or 'a tool'}")
    return found


def runs(connection: sqlite3.Connection) -> list[RunLine]:
    """Newest first, verified; a run of which nothing is left is not listed. Raises DataError where
    something is not what was recorded."""
    found = [
        RunLine(run, stage, key, started_at, *sums[:3])
        for run, (_, stage, key, started_at, _), sums in verified_runs(connection)
    ]
    return sorted(found, key=lambda one: one.started_at, reverse=True)


def similar_tool(connection: sqlite3.Connection, name: str) -> str | None:
    """None where the tool was called; else the name that is spelt most alike, empty where none is.
    Raises DataError where a name is damaged."""
    refuse_damaged_tools(connection)
    names = [known for (known,) in connection.execute("SELECT name FROM tools")]
    return None if name in names else next(iter(difflib.get_close_matches(name, names, n=1)), "")


def _conditions(wanted: EpisodeFilter) -> tuple[str, list[Any]]:
    """The cheap ones first: SQLite asks in this order."""
    found: list[tuple[str, tuple[Any, ...]]] = [("1", ())]
    if wanted.is_failed:
        found.append(("e.is_failed", ()))
    if wanted.steps is not None:
        found.append(("e.step BETWEEN ? AND ?", wanted.steps))
    if wanted.run is not None:
        found.append(("e.run = ?", (wanted.run,)))
    if wanted.stage is not None:
        found.append(
            (
                "e.run IN (SELECT id FROM runs WHERE stage = ? OR stage GLOB ?)",
                (wanted.stage, f"{_literal(wanted.stage)}@*"),
            )
        )
    if wanted.part is not None:
        found.append(("e.part = ?", (wanted.part,)))
    if wanted.stop_reason is not None:
        found.append(("e.stop_reason = ?", (wanted.stop_reason,)))
    if wanted.task_id is not None:
        found.append(("e.task IN (SELECT id FROM tasks WHERE task_id GLOB ?)", (f"{_literal(wanted.task_id)}*",)))
    if wanted.tool is not None or wanted.tool_outcome is not None:
        found.append(_called(wanted))
    return " AND ".join(condition for condition, _ in found), [value for _, values in found for value in values]


def _line(episode_id: int, rows: NarrowRows) -> Line:
    episode = dict(zip(EPISODE.split(", "), rows.episode, strict=True))
    is_success = episode["is_success"]
    return Line(
        episode_id=episode_id,
        run=rows.run_number,
        stage=rows.run[1],
        task_id=rows.task[1],
        cell=rows.task[2],
        is_success=None if is_success is None else bool(is_success),
        is_failed=bool(episode["is_failed"]),
        **{name: episode[name] for name in ("part", "step", "num_turns", "stop_reason", "reward", "advantage")},
    )


def _has_called(connection: sqlite3.Connection, episode_id: int, wanted: EpisodeFilter) -> bool:
    """By the calls themselves: the index of them is verified by nothing else."""
    asked = _asked_of_calls(wanted)
    where = " AND ".join(("episode = ?", *(f"+{condition}" for condition in asked)))  # with + no index serves
    return not asked or bool(
        connection.execute(f"SELECT 1 FROM calls WHERE {where} LIMIT 1", (episode_id, *asked.values())).fetchone()
    )


def _called(wanted: EpisodeFilter) -> tuple[str, tuple[Any, ...]]:
    """As a list of episodes from the index of calls, which SQLite walks instead of all episodes; to
    ask for each of them took ten times as long."""
    asked = _asked_of_calls(wanted)
    return f"e.id IN (SELECT episode FROM calls INDEXED BY calls_by_tool WHERE {' AND '.join(asked)})", tuple(
        asked.values()
    )


def _asked_of_calls(wanted: EpisodeFilter) -> dict[str, str]:
    conditions = {"tool = (SELECT id FROM tools WHERE name = ?)": wanted.tool, "outcome = ?": wanted.tool_outcome}
    return {condition: value for condition, value in conditions.items() if value is not None}


def _literal(text: str) -> str:
    """As GLOB reads it, every character for itself."""
    return re.sub(r"([*?\[])", r"[\1]", text)
