"""Filters and lists episodes. A filter becomes one SQL statement over the narrow table; nothing
here reads a body or loads a library."""

import difflib
import json
import re
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from posttrain.runtime.exits import ConfigurationError

Table = tuple[list[str], list[list[str]]]  # titles of the columns, and the cells of each row


@dataclass(frozen=True, slots=True)
class EpisodeFilter:
    """Conditions that all must hold of an episode; None and False ask nothing.

    `stage` is `evaluate@sft`, or `evaluate` for all its items. `steps` are the first and the last,
    both included, as are the bounds in `rewards`. `task_id` may be its beginning. `tool` was
    called, and `tool_outcome` (`ok`, `error`, `timeout`, `failed`) is how a call of it, or of any
    where no tool is named, ended.
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
    is_success: bool = False
    rewards: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """The episodes of one task at one optimizer step, with their mean reward."""

    step: int
    task_id: str
    cell: str
    reward: float | None
    num_failed: int
    episodes: tuple[int, ...]


def parse_steps(text: str | None) -> tuple[int, int] | None:
    """First and last step of `20..30`, or of `20` for that step alone; None for None. Raises
    ConfigurationError for anything else."""
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
    where, values = _conditions(wanted)
    return int(connection.execute(f"SELECT count(*) FROM episodes e WHERE {where}", values).fetchone()[0])


def episodes_table(connection: sqlite3.Connection, episodes: Sequence[int]) -> Table:
    """A row for each id, in their order; those that are gone are left out."""
    return _table(
        connection,
        "SELECT e.id AS episode, trim(stage || ' ' || part) AS stage, run, step, substr(task_id, 1, 12) AS task, cell, "
        "num_turns AS turns, CASE WHEN is_success IS NULL THEN iif(is_failed, 'aborted', '-') "
        "WHEN is_success AND NOT is_failed THEN 'success' ELSE 'failed' END AS result, stop_reason AS stop, "
        "iif(reward IS NULL, '-', printf('%.3f', reward)) AS reward, "
        "iif(advantage IS NULL, '-', printf('%.3f', advantage)) AS advantage "
        "FROM json_each(?) asked JOIN episodes e ON e.id = asked.value JOIN runs r ON r.id = run "
        "JOIN tasks t ON t.id = task ORDER BY asked.key",
        json.dumps(episodes),
    )


def runs_table(connection: sqlite3.Connection) -> Table:
    """A row for each run of which an episode is left, newest first; `key` is the folder of its
    checkpoints."""
    return _table(
        connection,
        "SELECT r.id AS run, stage, strftime('%Y-%m-%d %H:%M:%S', started_at, 'unixepoch', 'localtime') AS started, "
        "key, printf('%,d', count(*)) AS episodes, printf('%,d', sum(num_turns)) AS turns, "
        "printf('%,d', sum(is_failed)) AS failed "
        "FROM episodes e JOIN runs r ON r.id = run GROUP BY r.id ORDER BY started_at DESC",
    )


def stages(connection: sqlite3.Connection) -> list[str]:
    """The stages of which an episode is left, sorted."""
    rows = connection.execute("SELECT DISTINCT stage FROM episodes JOIN runs r ON r.id = run ORDER BY stage")
    return [stage for (stage,) in rows]


def groups(connection: sqlite3.Connection, run: int) -> list[Group]:
    """The groups of a training's rollouts, by step, and in a step by the tasks' labels."""
    rows = connection.execute(
        "SELECT step, task_id, cell, avg(reward), sum(is_failed), json_group_array(e.id) FROM episodes e "
        "JOIN tasks t ON t.id = e.task WHERE run = ? AND step IS NOT NULL GROUP BY step, e.task ORDER BY step, cell, "
        "task_id",
        (run,),
    )
    return [
        Group(step, task_id, cell, reward, num_failed, tuple(sorted(json.loads(episodes))))
        for step, task_id, cell, reward, num_failed, episodes in rows
    ]


def others_of_group(connection: sqlite3.Connection, episode: int) -> list[int]:
    """The other episodes that the run played of the task in the same step and part, newest
    first."""
    rows = connection.execute(
        "SELECT o.id FROM episodes e JOIN episodes o ON o.run = e.run AND o.task = e.task AND o.part = e.part "
        "AND o.step IS e.step WHERE e.id = ? AND o.id != e.id ORDER BY o.id DESC",
        (episode,),
    )
    return [other for (other,) in rows]


def trainings(connection: sqlite3.Connection) -> list[int]:
    """The runs whose episodes have optimizer steps, newest first."""
    statement = "SELECT DISTINCT run FROM episodes WHERE step IS NOT NULL ORDER BY run DESC"
    return [run for (run,) in connection.execute(statement)]


def similar_tool(connection: sqlite3.Connection, name: str) -> str | None:
    """None where the tool was called; else the most similar name of a tool that was, empty where
    none is similar."""
    names = [known for (known,) in connection.execute("SELECT DISTINCT tool FROM calls INDEXED BY calls_by_tool")]
    return None if name in names else next(iter(difflib.get_close_matches(name, names, n=1)), "")


def _table(connection: sqlite3.Connection, statement: str, *values: str) -> Table:
    found = connection.execute(statement, values)
    titles = [name for name, *_ in found.description]
    return titles, [["-" if cell is None else str(cell) for cell in row] for row in found]


def _conditions(wanted: EpisodeFilter) -> tuple[str, list[Any]]:
    """The SQL condition and its values, cheap tests first: SQLite evaluates them in this order."""
    found: list[tuple[str, tuple[Any, ...]]] = [("1", ())]
    if wanted.is_failed:
        found.append(("e.is_failed", ()))
    if wanted.is_success:
        found.append(("e.is_success AND NOT e.is_failed", ()))
    if wanted.rewards is not None:
        found.append(("e.reward BETWEEN ? AND ?", wanted.rewards))
    if wanted.steps is not None:
        found.append(("e.step BETWEEN ? AND ?", wanted.steps))
    equal = {"e.run = ?": wanted.run, "e.part = ?": wanted.part, "e.stop_reason = ?": wanted.stop_reason}
    found += [(condition, (value,)) for condition, value in equal.items() if value is not None]
    if wanted.stage is not None:
        found.append(
            (
                "e.run IN (SELECT id FROM runs WHERE stage = ? OR stage GLOB ?)",
                (wanted.stage, f"{_literal(wanted.stage)}@*"),
            )
        )
    if wanted.task_id is not None:
        found.append(("e.task IN (SELECT id FROM tasks WHERE task_id GLOB ?)", (f"{_literal(wanted.task_id)}*",)))
    if wanted.tool is not None or wanted.tool_outcome is not None:
        found.append(_called(wanted))
    return " AND ".join(condition for condition, _ in found), [value for _, values in found for value in values]


def _called(wanted: EpisodeFilter) -> tuple[str, tuple[Any, ...]]:
    """The condition on calls, as a list of episodes from the index of calls, which SQLite walks
    instead of all episodes; to ask for each of them took ten times as long."""
    conditions = {"tool = ?": wanted.tool, "outcome = ?": wanted.tool_outcome}
    asked = {condition: value for condition, value in conditions.items() if value is not None}
    episodes = f"SELECT episode FROM calls INDEXED BY calls_by_tool WHERE {' AND '.join(asked)}"
    return f"e.id IN ({episodes})", tuple(asked.values())


def _literal(text: str) -> str:
    """The text with GLOB's special characters escaped."""
    return re.sub(r"([*?\[])", r"[\1]", text)
