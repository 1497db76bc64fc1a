"""Between an episode and the rows that hold it, exactly: what was recorded comes back equal, log-probabilities as float32.

Those are kept of the agent's tokens alone, the others being 0.0 by `Trajectory`'s rule, and as they are: floats do not get smaller by zlib.
"""

import hashlib
import json
import sys
import zlib
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

from posttrain.data.schemas import task_columns, task_from_columns
from posttrain.traces.values import TracedEpisode
from posttrain.types import Message, StopReason, Task, ToolRun, Trajectory, Turn

_LEVEL = 1  # of zlib; 6 takes up to twice the time for a fifteenth less
Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class PackedEpisode:
    """Rows in the order of their tables' columns, without what only the store knows: the ids of episode, run and task. A call's tool is its name."""

    episode: Row
    body: Row
    turns: list[Row]
    calls: list[Row]


def pack(traced: TracedEpisode) -> PackedEpisode:
    """`calls` has what the agent wrote, answered or not."""
    played = traced.trajectory
    opening = traced.task.messages
    is_opening_left_out = played.messages[: len(opening)] == opening
    messages = played.messages[len(opening) :] if is_opening_left_out else played.messages
    return PackedEpisode(
        episode=(
            traced.step,
            traced.part,
            traced.is_failed,
            traced.is_success,
            str(played.stop_reason),
            played.reward,
            traced.advantage,
            played.seed,
            played.policy_version,
            len(played.turns) or sum(message.role == "assistant" for message in played.messages),
            len(played.token_ids),
        ),
        body=(
            zlib.compress(to_json([message.to_openai() for message in messages]).encode(), _LEVEL),
            is_opening_left_out,
            zlib.compress(_pack_numbers("i", played.token_ids), _LEVEL),
            zlib.compress(_pack_numbers("b", played.mask), _LEVEL),
            _pack_numbers("f", compress(played.logprobs, played.mask)),
            to_json(dict(played.scores)),
            storable(played.failure),
        ),
        turns=[(number, turn.num_read, turn.num_written, turn.policy_version, turn.latency_s) for number, turn in enumerate(played.turns, start=1)],
        calls=list(_calls(messages, played.turns)),
    )


def unpack(row: Mapping[str, Any], task: Task, turns: Sequence[Row], calls: Sequence[Row]) -> TracedEpisode:
    """`row` has the columns of `episodes` and `bodies`; `turns` and `calls` are the rows without the episode, in order."""
    own = tuple(Message.from_openai(message) for message in json.loads(zlib.decompress(row["messages"])))
    messages = (*task.messages, *own) if row["is_opening_left_out"] else own
    mask = _unpack_numbers("b", zlib.decompress(row["mask"]))
    logprobs = iter(_unpack_numbers("f", row["logprobs"]))
    played = Trajectory(
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
        turns=tuple(_turns(own, turns, calls)),
        failure=row["failure"],
    )
    is_success = None if row["is_success"] is None else bool(row["is_success"])
    return TracedEpisode(played, task, is_success, row["advantage"], row["step"], row["part"])


def pack_task(task: Task) -> Row:
    """digest, task_id, cell, content."""
    content = to_json(task_columns(task))
    return hashlib.sha256(content.encode()).digest(), task.task_id, f"{task.kind}/{task.market}/{task.language}/{task.difficulty}", content


def unpack_task(content: str) -> Task:
    """What `pack_task` made of a task."""
    return task_from_columns(json.loads(content))


def to_json(content: Any) -> str:
    """Compact, and UTF-8 throughout."""
    return storable(json.dumps(content, ensure_ascii=False, separators=(",", ":")))


def storable(text: str) -> str:
    """Half of a surrogate pair, which an agent can write in JSON's escapes and UTF-8 cannot hold, becomes that escape again."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _calls(messages: Sequence[Message], turns: Sequence[Turn]) -> Iterable[Row]:
    runs = {run.call_id: run for turn in turns for run in turn.tool_runs}
    number = turn = 0
    for message in messages:
        turn += message.role == "assistant"
        for call in message.tool_calls:
            number += 1
            run = runs.get(call.id)
            answer = (run.outcome, run.num_attempts, run.latency_s) if run else (None, None, None)
            yield number, turn, storable(call.name), *answer


def _turns(messages: Sequence[Message], turns: Sequence[Row], calls: Sequence[Row]) -> Iterable[Turn]:
    written = [call for message in messages for call in message.tool_calls]
    runs: dict[int, list[ToolRun]] = {}
    for call, (turn, outcome, num_attempts, latency_s) in zip(written, calls, strict=True):
        if outcome is not None:
            runs.setdefault(turn, []).append(ToolRun(call.id, call.name, outcome, num_attempts, latency_s))
    for number, num_read, num_written, policy_version, latency_s in turns:
        yield Turn(num_read, num_written, policy_version, tuple(runs.get(number, ())), latency_s)


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
