"""What the tables between the stages hold: tasks with their goal, and trajectories (demonstrations
are trajectories) without it.

Goals live in the tasks' table alone, so that nothing that filters, resamples or trains on
demonstrations can see it. Messages keep OpenAI's shape with `arguments` as JSON text; `tools` is
the JSON text of the schemas offered, one string a row, which Parquet's dictionary stores once each.
"""

import functools
import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from posttrain.data.files import ParquetBatches, rows_of, write_batches
from posttrain.data.trajectories import (
    COLUMNS,
    MESSAGE,
    message_columns,
    messages_from_columns,
    trajectory_columns,
    trajectory_from_columns,
)
from posttrain.types import Split, Task, Trajectory
from posttrain.worlds.tools import Tool

_ROWS_AT_ONCE, _CHARS_AT_ONCE = 4096, 2**26  # of texts, of at most 4 bytes each: a column of a table holds 2 GiB
_TEXT = pa.string()
_ABOUT = [("labels", _TEXT), ("split", _TEXT), ("template", _TEXT), ("entities", pa.list_(_TEXT))]
TASKS_SCHEMA = pa.schema(
    [
        ("task_id", _TEXT),
        *_ABOUT,
        ("messages", pa.list_(MESSAGE)),
        ("tools", pa.list_(_TEXT)),
        ("agent_name", _TEXT),
        ("goal", _TEXT),
    ]
)
TRAJECTORIES_SCHEMA = pa.schema([("trajectory_id", _TEXT), *_ABOUT, ("tools", _TEXT), ("reasoning", _TEXT), *COLUMNS])


@dataclass(frozen=True, slots=True)
class TrajectoryRow:
    """A trajectory with the labels of its task and the schemas of the tools it was offered; what
    its task wanted is not here."""

    trajectory: Trajectory
    labels: Mapping[str, str]
    split: Split
    template: str
    entities: tuple[str, ...]
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
    def reasoning(self) -> str | None:
        """All reasoning of the episode, a line for each message that has some; None where it has
        none."""
        return (
            "\n".join(message.reasoning_content for message in self.trajectory.messages if message.reasoning_content)
            or None
        )


def trajectory_row(trajectory: Trajectory, task: Task, domain_tools: Mapping[str, Tool]) -> TrajectoryRow:
    """The row of an episode of `task`. Raises ValueError where the trajectory is another task's:
    its labels would be wrong. The outcome's feedback, which may tell the goal, is left out."""
    if trajectory.task_id != task.task_id:
        raise ValueError(f"trajectory of task {trajectory.task_id} paired with task {task.task_id}")
    schemas = tuple(domain_tools[name].schema() for name in task.tools)
    if trajectory.outcome is not None:
        trajectory = replace(trajectory, outcome=replace(trajectory.outcome, feedback=""))
    return TrajectoryRow(trajectory, task.labels, task.split, task.template, task.entities, schemas)


def write_trajectories(path: Path, rows: Iterable[TrajectoryRow]) -> None:
    """Equal rows in equal order give equal bytes."""
    write_batches(path, _tables(map(_row_columns, rows), TRAJECTORIES_SCHEMA), TRAJECTORIES_SCHEMA)


def trajectories_table(rows: Iterable[TrajectoryRow]) -> pa.Table:
    """The Arrow table of TRAJECTORIES_SCHEMA."""
    return pa.Table.from_pylist([_row_columns(row) for row in rows], schema=TRAJECTORIES_SCHEMA)


def read_trajectories(path: Path, *splits: Split) -> list[TrajectoryRow]:
    """The rows of some splits, in the file's order; of all where none is named. Raises DataError
    where the file is damaged or lacks columns."""
    rows: list[TrajectoryRow] = []
    with rows_of(path):
        for batch in ParquetBatches(path, TRAJECTORIES_SCHEMA):
            rows += rows_of_table(_of_splits(batch, splits))
    return rows


def rows_of_table(table: pa.Table) -> list[TrajectoryRow]:
    """The rows of a table of TRAJECTORIES_SCHEMA."""
    return [_row_from_columns(columns) for columns in table.to_pylist()]


def write_tasks(path: Path, tasks: Iterable[Task]) -> None:
    """Equal tasks in equal order give equal bytes."""
    write_batches(path, _tables(map(task_columns, tasks), TASKS_SCHEMA), TASKS_SCHEMA)


def read_tasks(path: Path, *splits: Split, ids: Collection[str] | None = None) -> list[Task]:
    """The tasks of some splits, in the file's order; of all where none is named, and with `ids`
    only those. Raises DataError where the file is damaged or lacks columns."""
    tasks: list[Task] = []
    with rows_of(path):
        for batch in ParquetBatches(path, TASKS_SCHEMA):
            wanted = _of_splits(batch, splits)
            if ids is not None:
                wanted = wanted.filter(pc.is_in(wanted["task_id"], pa.array(list(ids), _TEXT)))
            tasks += [task_from_columns(columns) for columns in wanted.to_pylist()]
    return tasks


def task_columns(task: Task) -> dict[str, Any]:
    """The row of TASKS_SCHEMA, as plain JSON values."""
    return {
        "task_id": task.task_id,
        "labels": labels_text(task.labels),
        "split": task.split,
        "template": task.template,
        "entities": list(task.entities),
        "messages": message_columns(task.messages),
        "tools": list(task.tools),
        "agent_name": task.agent_name,
        "goal": task.goal,
    }


def task_from_columns(columns: Mapping[str, Any]) -> Task:
    """The task of such a row."""
    return Task(
        task_id=columns["task_id"],
        split=columns["split"],
        messages=messages_from_columns(columns["messages"]),
        tools=tuple(columns["tools"]),
        labels=labels_from_text(columns["labels"]),
        goal=columns["goal"],
        template=columns["template"],
        entities=tuple(columns["entities"]),
        agent_name=columns["agent_name"],
    )


def labels_text(labels: Mapping[str, str]) -> str:
    """Labels as a column holds them: a JSON object in the order in which the world has them."""
    return json.dumps(dict(labels), ensure_ascii=False, separators=(",", ":"))


@functools.lru_cache(maxsize=65536)
def labels_from_text(text: str) -> Mapping[str, str]:
    """What `labels_text` wrote. Raises ValueError on anything else."""
    labels = json.loads(text)
    if not isinstance(labels, dict) or not all(isinstance(value, str) for value in labels.values()):
        raise ValueError(f"labels are an object of texts, not {text[:100]}")
    return labels


def _tables(rows: Iterable[dict[str, Any]], schema: pa.Schema) -> Iterator[pa.Table]:
    """Each ends at a number of rows, or with the row that takes its texts over a size."""
    some: list[dict[str, Any]] = []
    num_chars = 0
    for row in rows:
        some.append(row)
        num_chars += sum(map(_num_chars, row["messages"])) + len(row["tools"]) + len(row.get("goal", ""))
        if len(some) == _ROWS_AT_ONCE or num_chars > _CHARS_AT_ONCE:
            yield pa.Table.from_pylist(some, schema=schema)
            some, num_chars = [], 0
    if some:
        yield pa.Table.from_pylist(some, schema=schema)


def _num_chars(message: Mapping[str, Any]) -> int:
    """Of a message's texts."""
    arguments = (call["function"]["arguments"] for call in message.get("tool_calls", ()))
    return len(message["content"]) + len(message.get("reasoning_content", "")) + sum(map(len, arguments))


def _of_splits(table: pa.Table, splits: Collection[Split]) -> pa.Table:
    """All rows where no split is named."""
    return table.filter(pc.is_in(table["split"], pa.array(list(splits), _TEXT))) if splits else table


def _row_columns(row: TrajectoryRow) -> dict[str, Any]:
    return {
        "trajectory_id": row.trajectory_id,
        "labels": labels_text(row.labels),
        "split": row.split,
        "template": row.template,
        "entities": list(row.entities),
        # Unsorted: the order of parameters is prompt text.
        "tools": json.dumps(row.tools, ensure_ascii=False, separators=(",", ":")),
        "reasoning": row.reasoning,
        **trajectory_columns(row.trajectory),
    }


def _row_from_columns(columns: Mapping[str, Any]) -> TrajectoryRow:
    return TrajectoryRow(
        trajectory_from_columns(columns),
        labels_from_text(columns["labels"]),
        columns["split"],
        columns["template"],
        tuple(columns["entities"]),
        _read_schemas(columns["tools"]),
    )


@functools.lru_cache(maxsize=4096)
def _read_schemas(text: str) -> tuple[Mapping[str, Any], ...]:
    return tuple(json.loads(text))


def _json(content: Any) -> str:
    return json.dumps(content, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
