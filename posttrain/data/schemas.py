"""Parquet schemas of the tables between stages, and the only code that writes and reads
trajectories and tasks as plain values (Parquet rows and lines of JSON).

Goals are a column of the tasks' table alone, so that nothing that filters, resamples or trains on
demonstrations can see them. Messages keep OpenAI's shape with `arguments` as JSON text; `tools` is
the JSON text of the schemas offered, one string a row, which Parquet's dictionary stores once each.
Wall-clock latencies (`latency_s`) are not written: equal episodes give equal bytes. The trace store
keeps them (`posttrain/traces/packing.py`).
"""

import functools
import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from posttrain.data.files import ParquetBatches, reading_rows, write_batches
from posttrain.types import Delegated, Message, Outcome, Split, StopReason, Task, ToolRun, Trajectory, Turn
from posttrain.worlds.tools import Tool

# An Arrow text column holds 2 GiB, and a character has at most 4 bytes
_ROWS_AT_ONCE, _CHARS_AT_ONCE = 4096, 2**26
_TEXT = pa.string()
_SCORES = pa.map_(_TEXT, pa.float64())
_CALL = pa.struct([("id", _TEXT), ("type", _TEXT), ("function", pa.struct([("name", _TEXT), ("arguments", _TEXT)]))])
_MESSAGE = pa.struct(
    [
        *((name, _TEXT) for name in ("role", "content", "reasoning_content")),
        ("tool_calls", pa.list_(_CALL)),
        ("tool_call_id", _TEXT),
    ]
)
_TOOL_RUN = pa.struct([("call_id", _TEXT), ("name", _TEXT), ("outcome", _TEXT), ("num_attempts", pa.int32())])
_TURN = pa.struct(
    [
        *(("num_read", pa.int32()), ("num_written", pa.int32())),
        *(("policy_version", pa.int64()), ("message_index", pa.int32())),
        ("tool_runs", pa.list_(_TOOL_RUN)),
    ]
)
_OUTCOME = pa.struct(
    [
        *(("success", pa.bool_()), ("strict_success", pa.bool_()), ("scores", _SCORES), ("reward", pa.float64())),
        *(("turn_scores", pa.list_(pa.float64())), ("failure", _TEXT), ("feedback", _TEXT)),
    ]
)
_DELEGATED = pa.struct(
    [("messages", pa.list_(_MESSAGE)), ("tools", _TEXT), ("stop_reason", _TEXT), ("turns", pa.list_(_TURN))]
)
TRAJECTORY_COLUMNS = [
    *(("task_id", _TEXT), ("messages", pa.list_(_MESSAGE)), ("stop_reason", _TEXT)),
    *(("seed", pa.int64()), ("policy_version", pa.int64())),
    *(("token_ids", pa.list_(pa.int32())), ("mask", pa.list_(pa.int8())), ("logprobs", pa.list_(pa.float32()))),
    *(("scores", _SCORES), ("reward", pa.float64()), ("turns", pa.list_(_TURN)), ("num_forks", pa.int32())),
    *(("window_starts", pa.list_(pa.int32())), ("window_roles", pa.list_(_TEXT)), ("delegated", pa.list_(_DELEGATED))),
    *(("failure", _TEXT), ("outcome", _OUTCOME)),
]
_ABOUT = [("labels", _TEXT), ("split", _TEXT), ("template", _TEXT), ("entities", pa.list_(_TEXT))]
TASKS_SCHEMA = pa.schema(
    [
        *(("task_id", _TEXT), *_ABOUT, ("messages", pa.list_(_MESSAGE))),
        *(("tools", pa.list_(_TEXT)), ("agent_name", _TEXT), ("goal", _TEXT)),
    ]
)
TRAJECTORIES_SCHEMA = pa.schema(
    [("trajectory_id", _TEXT), *_ABOUT, ("tools", _TEXT), ("reasoning", _TEXT), *TRAJECTORY_COLUMNS]
)


@dataclass(frozen=True, slots=True)
class TrajectoryRow:
    """A trajectory with the labels of its task and the schemas of the tools it was offered, without
    the task's goal."""

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
        one = self.trajectory
        content = [one.task_id, one.seed, one.policy_version, message_columns(one.messages)]
        text = json.dumps(content, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def reasoning(self) -> str | None:
        """All reasoning of the episode, a line per message that has some; None where none has."""
        return "\n".join(one.reasoning_content for one in self.trajectory.messages if one.reasoning_content) or None

    @property
    def conversation(self) -> tuple[Sequence[Message], Sequence[Mapping[str, Any]], frozenset[int]]:
        """Messages, tools and untrained messages, as `ChatCodec.encode_rows` takes them."""
        return self.trajectory.messages, self.tools, untrained_messages(self.trajectory)


def trajectory_row(trajectory: Trajectory, task: Task, domain_tools: Mapping[str, Tool]) -> TrajectoryRow:
    """The row of an episode of `task`, without the outcome's feedback, which may tell the goal.
    Raises ValueError where the trajectory is of another task: its labels would be wrong."""
    if trajectory.task_id != task.task_id:
        raise ValueError(f"trajectory of task {trajectory.task_id} paired with task {task.task_id}")
    schemas = tuple(domain_tools[name].schema() for name in task.tools)
    if trajectory.outcome is not None:
        trajectory = replace(trajectory, outcome=replace(trajectory.outcome, feedback=""))
    return TrajectoryRow(trajectory, task.labels, task.split, task.template, task.entities, schemas)


def tool_names(rows: Iterable[TrajectoryRow]) -> set[str]:
    """Names of all tools that were offered in these rows, to workers too."""
    offers = (tools for row in rows for tools in (row.tools, *(one.tools for one in row.trajectory.delegated)))
    return {tool["function"]["name"] for tools in offers for tool in tools}


def conversations(rows: Iterable[TrajectoryRow]) -> list[tuple[Message, ...]]:
    """The messages of each row, and of its workers behind it."""
    return [
        messages
        for row in rows
        for messages in (row.trajectory.messages, *(one.messages for one in row.trajectory.delegated))
    ]


def untrained_messages(trajectory: Trajectory) -> frozenset[int]:
    """Positions of the assistant messages that get no loss: those of no turn, where there are
    turns."""
    own = {turn.message_index for turn in trajectory.turns}
    assistant = (index for index, message in enumerate(trajectory.messages) if message.role == "assistant")
    return frozenset(index for index in assistant if index not in own) if own else frozenset()


def write_trajectories(path: Path, rows: Iterable[TrajectoryRow]) -> None:
    """Write a Parquet file; equal rows in equal order give equal bytes."""
    write_batches(path, _tables(map(_row_columns, rows), TRAJECTORIES_SCHEMA), TRAJECTORIES_SCHEMA)


def trajectories_table(rows: Iterable[TrajectoryRow]) -> pa.Table:
    """The rows as an Arrow table of TRAJECTORIES_SCHEMA."""
    return pa.Table.from_pylist([_row_columns(row) for row in rows], schema=TRAJECTORIES_SCHEMA)


def read_trajectories(path: Path, *splits: Split) -> list[TrajectoryRow]:
    """The rows of some splits (all where none is named) in the file's order. Raises DataError."""
    batches = ParquetBatches(path, TRAJECTORIES_SCHEMA)
    with reading_rows(path):
        return [row for batch in batches for row in rows_from_table(_of_splits(batch, splits))]


def rows_from_table(table: pa.Table) -> list[TrajectoryRow]:
    """The rows of a table of TRAJECTORIES_SCHEMA."""
    return [_row_from_columns(columns) for columns in table.to_pylist()]


def write_tasks(path: Path, tasks: Iterable[Task]) -> None:
    """Write a Parquet file; equal tasks in equal order give equal bytes."""
    write_batches(path, _tables(map(task_columns, tasks), TASKS_SCHEMA), TASKS_SCHEMA)


def read_tasks(path: Path, *splits: Split, ids: Collection[str] | None = None) -> list[Task]:
    """The tasks of some splits (all where none is named), with `ids` only those, in the file's
    order. Raises DataError."""
    tasks: list[Task] = []
    with reading_rows(path):
        for batch in ParquetBatches(path, TASKS_SCHEMA):
            wanted = _of_splits(batch, splits)
            if ids is not None:
                wanted = wanted.filter(pc.is_in(wanted["task_id"], pa.array(list(ids), _TEXT)))
            tasks += [task_from_columns(columns) for columns in wanted.to_pylist()]
    return tasks


def trajectory_columns(trajectory: Trajectory) -> dict[str, Any]:
    """The row of TRAJECTORY_COLUMNS, as plain JSON values."""
    return {
        **_own_fields(trajectory, "task_id", "seed", "policy_version", "reward", "num_forks", "failure"),
        "messages": message_columns(trajectory.messages),
        "stop_reason": str(trajectory.stop_reason),
        "token_ids": list(trajectory.token_ids),
        "mask": list(trajectory.mask),
        "logprobs": list(trajectory.logprobs),
        "scores": sorted(trajectory.scores.items()),  # pairs: what Arrow makes of a map
        "turns": [_turn_columns(turn) for turn in trajectory.turns],
        "window_starts": list(trajectory.window_starts),
        "window_roles": list(trajectory.window_roles),
        "delegated": [delegated_columns(one) for one in trajectory.delegated],
        "outcome": None if trajectory.outcome is None else outcome_columns(trajectory.outcome),
    }


def trajectory_from_columns(columns: Mapping[str, Any]) -> Trajectory:
    """The inverse of `trajectory_columns`."""
    outcome = columns["outcome"]
    return Trajectory(
        **{name: columns[name] for name in ("task_id", "seed", "policy_version", "reward", "num_forks", "failure")},
        messages=messages_from_columns(columns["messages"]),
        stop_reason=StopReason(columns["stop_reason"]),
        token_ids=tuple(columns["token_ids"]),
        mask=tuple(columns["mask"]),
        logprobs=tuple(columns["logprobs"]),
        scores=dict(columns["scores"]),
        turns=tuple(map(_turn_from_columns, columns["turns"])),
        # none of the three in what an older version wrote
        window_starts=tuple(columns.get("window_starts") or ()),
        window_roles=tuple(columns.get("window_roles") or ()),
        delegated=tuple(map(_delegated_from_columns, columns.get("delegated") or ())),
        outcome=None if outcome is None else outcome_from_columns(outcome),
    )


def delegated_columns(one: Delegated) -> dict[str, Any]:
    """A worker's conversation as plain JSON values, the schemas of its tools as JSON text."""
    return {
        "messages": message_columns(one.messages),
        "tools": _schemas_text(one.tools),
        "stop_reason": str(one.stop_reason),
        "turns": [_turn_columns(turn) for turn in one.turns],
    }


def _delegated_from_columns(columns: Mapping[str, Any]) -> Delegated:
    return Delegated(
        messages_from_columns(columns["messages"]),
        _schemas_from_text(columns["tools"]),
        StopReason(columns["stop_reason"]),
        tuple(map(_turn_from_columns, columns["turns"])),
    )


def outcome_columns(outcome: Outcome) -> dict[str, Any]:
    """An outcome as plain JSON values, its scores as sorted pairs."""
    return {
        **_own_fields(outcome, "success", "strict_success", "reward", "failure", "feedback"),
        "scores": sorted(outcome.scores.items()),
        "turn_scores": list(outcome.turn_scores),
    }


def outcome_from_columns(columns: Mapping[str, Any]) -> Outcome:
    """The inverse of `outcome_columns`."""
    return Outcome(**{**columns, "scores": dict(columns["scores"]), "turn_scores": tuple(columns["turn_scores"])})


def message_columns(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages in OpenAI's shape, `arguments` as JSON text."""
    return [message.to_openai() for message in messages]


def messages_from_columns(messages: Sequence[Mapping[str, Any]]) -> tuple[Message, ...]:
    """The inverse of `message_columns`."""
    return tuple(Message.from_openai(message) for message in messages)


def task_columns(task: Task) -> dict[str, Any]:
    """The row of TASKS_SCHEMA, as plain JSON values."""
    return {  # the trace store knows a task by a digest of this text: its keys keep their order
        "task_id": task.task_id,
        "labels": labels_text(task.labels),
        **_own_fields(task, "split", "template"),
        "entities": list(task.entities),
        "messages": message_columns(task.messages),
        "tools": list(task.tools),
        **_own_fields(task, "agent_name", "goal"),
    }


def task_from_columns(columns: Mapping[str, Any]) -> Task:
    """The inverse of `task_columns`."""
    return Task(
        **{name: columns[name] for name in ("task_id", "split", "template", "agent_name", "goal")},
        labels=labels_from_text(columns["labels"]),
        entities=tuple(columns["entities"]),
        messages=messages_from_columns(columns["messages"]),
        tools=tuple(columns["tools"]),
    )


def labels_text(labels: Mapping[str, str]) -> str:
    """A JSON object in the order in which the world has the labels."""
    return json.dumps(dict(labels), ensure_ascii=False, separators=(",", ":"))


@functools.lru_cache(maxsize=65536)
def labels_from_text(text: str) -> Mapping[str, str]:
    """The inverse of `labels_text`."""
    labels: Mapping[str, str] = json.loads(text)
    return labels


def _own_fields(value: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}


def _turn_columns(turn: Turn) -> dict[str, Any]:
    runs = [_own_fields(run, "call_id", "name", "outcome", "num_attempts") for run in turn.tool_runs]
    return {**_own_fields(turn, "num_read", "num_written", "policy_version", "message_index"), "tool_runs": runs}


def _turn_from_columns(columns: Mapping[str, Any]) -> Turn:
    return Turn(**{**columns, "tool_runs": tuple(ToolRun(**run) for run in columns["tool_runs"])})


def _tables(rows: Iterable[dict[str, Any]], schema: pa.Schema) -> Iterator[pa.Table]:
    """Tables of consecutive rows, bounded by number and by the size of their texts."""
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
    arguments = (call["function"]["arguments"] for call in message.get("tool_calls", ()))
    return len(message["content"]) + len(message.get("reasoning_content", "")) + sum(map(len, arguments))


def _of_splits(table: pa.Table, splits: Collection[Split]) -> pa.Table:
    return table.filter(pc.is_in(table["split"], pa.array(list(splits), _TEXT))) if splits else table


def _row_columns(row: TrajectoryRow) -> dict[str, Any]:
    return {
        **_own_fields(row, "trajectory_id", "split", "template", "reasoning"),
        "labels": labels_text(row.labels),
        "entities": list(row.entities),
        "tools": _schemas_text(row.tools),
        **trajectory_columns(row.trajectory),
    }


def _row_from_columns(columns: Mapping[str, Any]) -> TrajectoryRow:
    return TrajectoryRow(
        trajectory_from_columns(columns),
        labels_from_text(columns["labels"]),
        columns["split"],
        columns["template"],
        tuple(columns["entities"]),
        _schemas_from_text(columns["tools"]),
    )


def _schemas_text(tools: Sequence[Mapping[str, Any]]) -> str:
    """Unsorted: the order of parameters is prompt text."""
    return json.dumps(tools, ensure_ascii=False, separators=(",", ":"))


@functools.lru_cache(maxsize=4096)
def _schemas_from_text(text: str) -> tuple[Mapping[str, Any], ...]:
    return tuple(json.loads(text))
