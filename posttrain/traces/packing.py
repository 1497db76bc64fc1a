"""Packs an episode into rows of the trace store, and unpacks rows into an equal episode.

All but the tokens is one JSON text, in the form that stages write (`data/schemas.py`) plus the
latencies. Tokens are arrays: as JSON they would take three times the room and the time.
"""

import hashlib
import json
import zlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import compress
from typing import Any

from posttrain.data.schemas import task_columns, trajectory_columns, trajectory_from_columns
from posttrain.traces.values import TracedEpisode
from posttrain.types import Task, Turn

_LEVEL = 1  # of zlib; 6 takes up to twice the time for a fifteenth less
Row = tuple[Any, ...]


def pack_filters(traced: TracedEpisode) -> Row:
    """The columns of `episodes` from `step` on."""
    trajectory = traced.trajectory
    return (
        traced.step,
        traced.part,
        traced.is_failed,
        traced.is_success,
        str(trajectory.stop_reason),
        trajectory.reward,
        None if traced.advantage is None else float(traced.advantage),
        len(trajectory.turns) or len(traced.written()),
    )


def pack_body(traced: TracedEpisode) -> Row:
    """The columns of `bodies` from `content` on. Log-probabilities are those of the agent's tokens
    alone: all others are 0.0 by `Trajectory`'s rule, and zlib makes floats no smaller."""
    trajectory = traced.trajectory
    columns = trajectory_columns(replace(trajectory, token_ids=(), mask=(), logprobs=()))
    content = {
        **columns,
        "messages": columns["messages"][traced.num_opening :],
        "is_opening_left_out": traced.num_opening > 0,
        "latencies_s": [(turn.latency_s, [run.latency_s for run in turn.tool_runs]) for turn in trajectory.turns],
    }
    return (
        zlib.compress(to_json(content).encode(), _LEVEL),
        zlib.compress(array("i", trajectory.token_ids).tobytes(), _LEVEL),
        zlib.compress(bytes(trajectory.mask), _LEVEL),
        array("f", compress(trajectory.logprobs, trajectory.mask)).tobytes(),
    )


def unpack(body: Row, task: Task, **figures: Any) -> TracedEpisode:
    """An episode of a row of `bodies`. `figures` are the other fields of TracedEpisode."""
    content, token_ids, mask = map(zlib.decompress, body[:3])
    columns = json.loads(content)
    logprobs = iter(array("f", body[3]))
    latencies_s = columns.pop("latencies_s")
    has_opening = columns.pop("is_opening_left_out")
    trajectory = trajectory_from_columns(
        {
            **columns,
            "token_ids": array("i", token_ids),
            "mask": mask,
            "logprobs": [next(logprobs) if is_written else 0.0 for is_written in mask],
        }
    )
    trajectory = replace(
        trajectory,
        messages=(*task.messages, *trajectory.messages) if has_opening else trajectory.messages,
        turns=tuple(map(_with_latencies, trajectory.turns, latencies_s)),
    )
    return TracedEpisode(trajectory, task, **figures)


def pack_calls(traced: TracedEpisode) -> set[tuple[str, str]]:
    """Tool and outcome of the agent's calls: those that were run, and, with an empty outcome, those
    that nobody answered. Calls in messages that the agent's program inserted are left out."""
    trajectory = traced.trajectory
    runs = [run for turn in trajectory.turns for run in turn.tool_runs]
    written = [call for index in traced.written() for call in trajectory.messages[index].tool_calls]
    answered = {run.call_id for run in runs}
    calls = {(run.name, str(run.outcome)) for run in runs}
    calls |= {(call.name, "") for call in written if call.id not in answered}
    return {(storable(name), outcome) for name, outcome in calls}


def pack_task(task: Task) -> Row:
    """The row of a task: digest, task_id, cell, content."""
    content = to_json(task_columns(task))
    return hashlib.sha256(content.encode()).digest(), task.task_id, "/".join(task.labels.values()), content


def to_json(content: Mapping[str, Any]) -> str:
    """Compact JSON in ASCII: UTF-8 cannot hold half of a surrogate pair."""
    return json.dumps(content, separators=(",", ":"))


def storable(text: str) -> str:
    """The text with each half of a surrogate pair as JSON's escape of it."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _with_latencies(turn: Turn, latencies_s: tuple[float, Sequence[float]]) -> Turn:
    latency_s, of_runs_s = latencies_s
    runs = [replace(run, latency_s=one_s) for run, one_s in zip(turn.tool_runs, of_runs_s, strict=True)]
    return replace(turn, latency_s=latency_s, tool_runs=tuple(runs))
