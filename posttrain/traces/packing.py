"""Packs an episode into rows of the trace store, and unpacks rows into an equal episode.

Log-probabilities are stored as float32, for the agent's tokens alone: all others are 0.0 by
`Trajectory`'s rule. They are not compressed, because zlib makes floats no smaller.
"""

import hashlib
import json
import sys
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from operator import itemgetter
from typing import Any

from posttrain.data.schemas import outcome_columns, outcome_from_columns, task_columns, task_from_columns
from posttrain.traces.values import TracedEpisode
from posttrain.types import Message, StopReason, Task, ToolRun, Trajectory, Turn

_LEVEL = 1  # of zlib; 6 takes up to twice the time for a fifteenth less
Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class PackedEpisode:
    """Rows in the order of `schema.py`'s columns, without what only the store knows: the ids of
    episode, run and task, and the episode's number. A call has its tool's name in place of the
    tool's id."""

    episode: Row
    body: Row
    turns: list[Row]
    calls: list[Row]


def pack(traced: TracedEpisode) -> PackedEpisode:
    """The rows of an episode. `calls` holds the calls that were run, and those that the agent wrote
    and nobody answered; calls in messages that the agent's program inserted are left out."""
    trajectory = traced.trajectory
    return PackedEpisode(
        episode=(
            traced.step,
            traced.part,
            int(traced.is_failed),
            None if traced.is_success is None else int(traced.is_success),
            str(trajectory.stop_reason),
            _real(trajectory.reward),
            _real(traced.advantage),
            trajectory.seed,
            trajectory.policy_version,
            len(trajectory.turns) or len(traced.written()),
            len(trajectory.token_ids),
        ),
        body=(
            zlib.compress(
                to_json([message.to_openai() for message in trajectory.messages[traced.num_opening :]]).encode(), _LEVEL
            ),
            int(traced.num_opening > 0),
            zlib.compress(_pack_numbers("i", trajectory.token_ids), _LEVEL),
            zlib.compress(_pack_numbers("b", trajectory.mask), _LEVEL),
            _pack_numbers("f", compress(trajectory.logprobs, trajectory.mask)),
            to_json(dict(trajectory.scores)),
            _to_text(trajectory.failure),
            trajectory.num_forks,
            None if trajectory.outcome is None else to_json(outcome_columns(trajectory.outcome)),
        ),
        turns=[
            (number, turn.num_read, turn.num_written, turn.policy_version, _real(turn.latency_s), turn.message_index)
            for number, turn in enumerate(trajectory.turns, start=1)
        ],
        calls=[(number, *call) for number, call in enumerate(_calls(traced), start=1)],
    )


def unpack(row: Mapping[str, Any], task: Task, turns: Sequence[Row], calls: Sequence[Row]) -> TracedEpisode:
    """`row` has the columns of `episodes` and `bodies`; `turns` and `calls` are the rows without
    the episode, in order."""
    opening = task.messages if row["is_opening_left_out"] else ()
    messages = (*opening, *(Message.from_openai(message) for message in json.loads(zlib.decompress(row["messages"]))))
    # Order matters: the mask says which positions the stored log-probabilities belong to.
    mask = _unpack_numbers("b", zlib.decompress(row["mask"]))
    logprobs = iter(_unpack_numbers("f", row["logprobs"]))
    trajectory = Trajectory(
        task_id=task.task_id,
        messages=messages,
        stop_reason=StopReason(row["stop_reason"]),
        seed=row["seed"],
        policy_version=row["policy_version"],
        token_ids=_unpack_numbers("i", zlib.decompress(row["token_ids"])),
        mask=mask,
        logprobs=tuple(next(logprobs) if is_written else 0.0 for is_written in mask),
        scores=json.loads(row["scores"]),
        reward=row["reward"],
        turns=tuple(_turns(turns, calls)),
        num_forks=row["num_forks"],
        failure=_from_text(row["failure"]),
        outcome=None if row["outcome"] is None else outcome_from_columns(json.loads(row["outcome"])),
    )
    is_success = None if row["is_success"] is None else bool(row["is_success"])
    return TracedEpisode(trajectory, task, is_success, row["advantage"], row["step"], row["part"])


def pack_task(task: Task) -> Row:
    """The row of a task: digest, task_id, cell, content."""
    content = to_json(task_columns(task))
    return (
        hashlib.sha256(content.encode()).digest(),
        task.task_id,
        "/".join(task.labels.values()),
        content,
    )


def unpack_task(content: str) -> Task:
    """The task of a row's `content`."""
    return task_from_columns(json.loads(content))


def to_json(content: Any) -> str:
    """Compact JSON that UTF-8 can hold."""
    return storable(json.dumps(content, ensure_ascii=False, separators=(",", ":")))


def storable(text: str) -> str:
    """The text with each half of a surrogate pair, which UTF-8 cannot hold, as JSON's escape of it.
    An agent can write one by that escape."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _calls(traced: TracedEpisode) -> list[Row]:
    """Calls by turn: first those that were run, in recorded order, then those never answered."""
    trajectory = traced.trajectory
    runs = [(number, run) for number, turn in enumerate(trajectory.turns, start=1) for run in turn.tool_runs]
    answered = {run.call_id for _, run in runs}
    calls: list[Row] = [
        (turn, _to_text(run.name), run.outcome, run.num_attempts, _real(run.latency_s), _to_text(run.call_id))
        for turn, run in runs
    ]
    for turn, index in enumerate(traced.written(), start=1):
        open_calls = [call for call in trajectory.messages[index].tool_calls if call.id not in answered]
        calls += [(turn, _to_text(call.name), None, None, None, _to_text(call.id)) for call in open_calls]
    return sorted(calls, key=itemgetter(0))


def _turns(turns: Sequence[Row], calls: Sequence[Row]) -> Iterator[Turn]:
    runs: dict[int, list[ToolRun]] = {}
    for _, turn, name, outcome, num_attempts, latency_s, call_id in calls:
        if outcome is not None:
            run = ToolRun(_from_text(call_id), _from_text(name), outcome, num_attempts, latency_s)
            runs.setdefault(turn, []).append(run)
    for number, num_read, num_written, policy_version, latency_s, message_index in turns:
        yield Turn(num_read, num_written, policy_version, message_index, tuple(runs.get(number, ())), latency_s)


def _to_text(text: str) -> str | bytes:
    """The text as SQLite can hold it: bytes where it has half of a surrogate pair, because SQLite's
    text is UTF-8."""
    return text if storable(text) == text else text.encode("utf-8", "surrogatepass")


def _from_text(stored: str | bytes) -> str:
    return stored if isinstance(stored, str) else stored.decode("utf-8", "surrogatepass")


def _real(number: float | None) -> float | None:
    """The number as a REAL column gives it back: NaN as null, and -0.0 as 0.0."""
    return None if number is None or number != number else float(number) + 0.0


def _pack_numbers(typecode: str, numbers: Iterable[int] | Iterable[float]) -> bytes:
    return _little_endian(array(typecode, numbers)).tobytes()


def _unpack_numbers(typecode: str, blob: bytes) -> tuple[Any, ...]:
    numbers = array(typecode)
    numbers.frombytes(blob)
    return tuple(_little_endian(numbers))


def _little_endian(numbers: "array[Any]") -> "array[Any]":
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
