"""What the tables between the stages hold: tasks with their gold, and trajectories (demonstrations
are trajectories) without it.

Gold lives in the tasks' table alone, so that nothing that filters, resamples or trains on
demonstrations can see it. Messages keep OpenAI's shape with `arguments` as JSON text; `tools` is
the JSON text of the schemas offered, one string a row, which Parquet's dictionary stores once each.
"""

import functools
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from posttrain.data.files import read_parquet, rows_of, write_parquet
from posttrain.data.trajectories import (
    COLUMNS,
    MESSAGE,
    message_columns,
    messages_from_columns,
    trajectory_columns,
    trajectory_from_columns,
)
from posttrain.types import Answer, Gold, GoldCall, Kind, Split, Task, Trajectory
from posttrain.worlds.tools import Tool

_TEXT = pa.string()
_CELL = [
    ("kind", _TEXT),
    ("market", _TEXT),
    ("language", _TEXT),
    ("difficulty", pa.int8()),
    ("split", _TEXT),
    ("template", _TEXT),
    ("companies", pa.list_(_TEXT)),
]
TASKS_SCHEMA = pa.schema(
    [
        ("task_id", _TEXT),
        *_CELL,
        ("messages", pa.list_(MESSAGE)),
        ("tools", pa.list_(_TEXT)),
        ("agent_name", _TEXT),
        ("gold", _TEXT),
    ]
)
TRAJECTORIES_SCHEMA = pa.schema(
    [("trajectory_id", _TEXT), *_CELL, ("tools", _TEXT), ("reasoning", _TEXT), *COLUMNS],
)


@dataclass(frozen=True, slots=True)
class TrajectoryRow:
    """A trajectory with the cell of its task and the schemas of the tools it was offered; what its
    task wanted is not here."""

    trajectory: Trajectory
    kind: Kind
    market: str
    language: str
    difficulty: int
    split: Split
    template: str
    companies: tuple[str, ...]
    tools: tuple[Mapping[str, Any], ...]

    @property
    def trajectory_id(self) -> str:
        """16 hex digits of the content: equal for equal episodes of one task under one seed and
        policy version, and for no others."""
        played = self.trajectory
        content = [
            played.task_id,
            played.seed,
            played.policy_version,
            [message.to_openai() for message in played.messages],
        ]
        return hashlib.sha256(_json(content).encode()).hexdigest()[:16]

    @property
    def cell(self) -> str:
        """`kind/market/language/difficulty`."""
        return f"{self.kind}/{self.market}/{self.language}/{self.difficulty}"

    @property
    def reasoning(self) -> str | None:
        """All reasoning of the episode, a line for each message that has some; None where it has
        none."""
        return (
            "\n".join(message.reasoning_content for message in self.trajectory.messages if message.reasoning_content)
            or None
        )


def trajectory_row(trajectory: Trajectory, task: Task, domain_tools: Mapping[str, Tool]) -> TrajectoryRow:
    """The row of an episode of `task`. Raises ValueError where the trajectory is another task's:
    its cell would be wrong."""
    if trajectory.task_id != task.task_id:
        raise ValueError(f"trajectory of task {trajectory.task_id} paired with task {task.task_id}")
    schemas = tuple(domain_tools[name].schema() for name in task.tools)
    return TrajectoryRow(
        trajectory,
        task.kind,
        task.market,
        task.language,
        task.difficulty,
        task.split,
        task.template,
        task.companies,
        schemas,
    )


def write_trajectories(path: Path, rows: Iterable[TrajectoryRow]) -> None:
    """Equal rows in equal order give equal bytes."""
    write_parquet(path, trajectories_table(rows))


def trajectories_table(rows: Iterable[TrajectoryRow]) -> pa.Table:
    """The Arrow table of TRAJECTORIES_SCHEMA."""
    return pa.Table.from_pylist([_row_columns(row) for row in rows], schema=TRAJECTORIES_SCHEMA)


def read_trajectories(path: Path) -> list[TrajectoryRow]:
    """Raises DataError where the file is damaged or lacks columns."""
    table = read_parquet(path, TRAJECTORIES_SCHEMA)
    with rows_of(path):
        return rows_of_table(table)


def rows_of_table(table: pa.Table) -> list[TrajectoryRow]:
    """The rows of a table of TRAJECTORIES_SCHEMA."""
    return [_row_from_columns(columns) for columns in table.to_pylist()]


def write_tasks(path: Path, tasks: Iterable[Task]) -> None:
    """Equal tasks in equal order give equal bytes."""
    write_parquet(path, pa.Table.from_pylist([task_columns(task) for task in tasks], schema=TASKS_SCHEMA))


def read_tasks(path: Path, *splits: Split) -> list[Task]:
    """The tasks of some splits, in the file's order; of all where none is named. Raises DataError
    where the file is damaged or lacks columns."""
    table = read_parquet(path, TASKS_SCHEMA)
    with rows_of(path):
        return [task_from_columns(columns) for columns in table.to_pylist() if not splits or columns["split"] in splits]


def gold_to_json(gold: Gold) -> str:
    """One line, keys sorted; a number's value as text, so that 12.30 keeps its precision."""
    answer = {"type": gold.answer.type, "value": str(gold.answer.value), "unit": gold.answer.unit}
    calls = [
        {"name": call.name, "arguments": dict(call.arguments), "holds_answer": call.holds_answer} for call in gold.calls
    ]
    return _json({"answer": answer, "calls": calls, "asks": gold.asks})


def gold_from_json(text: str) -> Gold:
    """What `gold_to_json` wrote. Raises ValueError or KeyError on anything else."""
    content = json.loads(text)
    answer = content["answer"]
    value = Decimal(answer["value"]) if answer["type"] == "number" else answer["value"]
    calls = tuple(
        GoldCall(
            call["name"], {name: tuple(accepted) for name, accepted in call["arguments"].items()}, call["holds_answer"]
        )
        for call in content["calls"]
    )
    return Gold(Answer(answer["type"], value, answer["unit"]), calls, content["asks"])


def task_columns(task: Task) -> dict[str, Any]:
    """The row of TASKS_SCHEMA, as plain JSON values."""
    return {
        "task_id": task.task_id,
        "kind": task.kind,
        "market": task.market,
        "language": task.language,
        "difficulty": task.difficulty,
        "split": task.split,
        "template": task.template,
        "companies": list(task.companies),
        "messages": message_columns(task.messages),
        "tools": list(task.tools),
        "agent_name": task.agent_name,
        "gold": gold_to_json(task.gold),
    }


def task_from_columns(columns: Mapping[str, Any]) -> Task:
    """The task of such a row."""
    return Task(
        **{
            name: columns[name]
            for name in ("task_id", "kind", "market", "language", "difficulty", "split", "template", "agent_name")
        },
        messages=messages_from_columns(columns["messages"]),
        tools=tuple(columns["tools"]),
        companies=tuple(columns["companies"]),
        gold=gold_from_json(columns["gold"]),
    )


def _row_columns(row: TrajectoryRow) -> dict[str, Any]:
    return {
        "trajectory_id": row.trajectory_id,
        "kind": row.kind,
        "market": row.market,
        "language": row.language,
        "difficulty": row.difficulty,
        "split": row.split,
        "template": row.template,
        "companies": list(row.companies),
        # Unsorted: the order of parameters is prompt text.
        "tools": json.dumps(row.tools, ensure_ascii=False, separators=(",", ":")),
        "reasoning": row.reasoning,
        **trajectory_columns(row.trajectory),
    }


def _row_from_columns(columns: Mapping[str, Any]) -> TrajectoryRow:
    return TrajectoryRow(
        trajectory_from_columns(columns),
        columns["kind"],
        columns["market"],
        columns["language"],
        columns["difficulty"],
        columns["split"],
        columns["template"],
        tuple(columns["companies"]),
        _read_schemas(columns["tools"]),
    )


@functools.lru_cache(maxsize=4096)
def _read_schemas(text: str) -> tuple[Mapping[str, Any], ...]:
    return tuple(json.loads(text))


def _json(content: Any) -> str:
    return json.dumps(content, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
