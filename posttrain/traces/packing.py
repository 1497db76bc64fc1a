"""Between an episode and the rows that hold it, exactly: what was recorded comes back equal,
log-probabilities as float32.

Those are kept of the agent's tokens alone, the others being 0.0 by `Trajectory`'s rule, and as they
are: floats do not get smaller by zlib. Version 1 of the store kept neither forks nor where a turn's
message stands nor the ids of calls: its episodes are read as if they had no fork, the turns being
the assistant messages in their order.
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

from posttrain.data.schemas import labels_text, outcome_columns, outcome_from_columns, task_columns, task_from_columns
from posttrain.traces.schema import UNKNOWN
from posttrain.traces.values import TracedEpisode
from posttrain.types import Message, StopReason, Task, ToolRun, Trajectory, Turn

_LEVEL = 1  # of zlib; 6 takes up to twice the time for a fifteenth less
# of a task before version 4; its other columns were labels, or a list of entities
_NO_LABELS = ("task_id", "split", "template", "messages", "tools", "agent_name", "gold")
Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class PackedEpisode:
    """Rows in the order of `schema.py`'s columns, the values as SQLite gives them back, without
    what only the store knows: the ids of episode, run and task, and the episode's number. A call's
    tool is its name."""

    episode: Row
    body: Row
    turns: list[Row]
    calls: list[Row]


def pack(traced: TracedEpisode) -> PackedEpisode:
    """`calls` has what was run and what the agent wrote and nobody answered; nothing of messages
    that its program put into its mouth."""
    played = traced.trajectory
    return PackedEpisode(
        episode=(
            traced.step,
            traced.part,
            int(traced.is_failed),
            None if traced.is_success is None else int(traced.is_success),
            str(played.stop_reason),
            _real(played.reward),
            _real(traced.advantage),
            played.seed,
            played.policy_version,
            len(played.turns) or len(traced.written()),
            len(played.token_ids),
        ),
        body=(
            zlib.compress(
                to_json([message.to_openai() for message in played.messages[traced.num_opening :]]).encode(), _LEVEL
            ),
            int(traced.num_opening > 0),
            zlib.compress(_pack_numbers("i", played.token_ids), _LEVEL),
            zlib.compress(_pack_numbers("b", played.mask), _LEVEL),
            _pack_numbers("f", compress(played.logprobs, played.mask)),
            to_json(dict(played.scores)),
            _to_text(played.failure),
            played.num_forks,
            None if played.outcome is None else to_json(outcome_columns(played.outcome)),
        ),
        turns=[
            (number, turn.num_read, turn.num_written, turn.policy_version, _real(turn.latency_s), turn.message_index)
            for number, turn in enumerate(played.turns, start=1)
        ],
        calls=[(number, *call) for number, call in enumerate(_calls(traced), start=1)],
    )


def unpack(row: Mapping[str, Any], task: Task, turns: Sequence[Row], calls: Sequence[Row]) -> TracedEpisode:
    """`row` has the columns of `episodes` and `bodies`; `turns` and `calls` are the rows without
    the episode, in order."""
    opening = task.messages if row["is_opening_left_out"] else ()
    messages = (*opening, *(Message.from_openai(message) for message in json.loads(zlib.decompress(row["messages"]))))
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
        turns=tuple(_turns(messages, len(opening), turns, calls)),
        num_forks=row["num_forks"],
        failure=_from_text(row["failure"]),
        outcome=None if row["outcome"] is None else outcome_from_columns(json.loads(row["outcome"])),
    )
    is_success = None if row["is_success"] is None else bool(row["is_success"])
    return TracedEpisode(played, task, is_success, row["advantage"], row["step"], row["part"])


def pack_task(task: Task) -> Row:
    """digest, task_id, cell, content."""
    content = to_json(task_columns(task))
    return (
        hashlib.sha256(content.encode()).digest(),
        task.task_id,
        "/".join(task.labels.values()),
        content,
    )


def unpack_task(content: str) -> Task:
    """What `pack_task` made of a task. Before version 4 each label was a column of its own, and the
    goal was called gold."""
    columns = json.loads(content)
    if "labels" not in columns:
        labels = {
            name: str(value)
            for name, value in columns.items()
            if name not in _NO_LABELS and not isinstance(value, list)
        }
        lists = [value for name, value in columns.items() if name not in _NO_LABELS and isinstance(value, list)]
        entities = lists[0] if lists else []
        columns = {**columns, "labels": labels_text(labels), "goal": columns["gold"], "entities": entities}
    return task_from_columns(columns)


def to_json(content: Any) -> str:
    """Compact, and UTF-8 throughout."""
    return storable(json.dumps(content, ensure_ascii=False, separators=(",", ":")))


def storable(text: str) -> str:
    """Half of a surrogate pair, which an agent can write in JSON's escapes and UTF-8 cannot hold,
    becomes that escape again."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _calls(traced: TracedEpisode) -> list[Row]:
    """Turn by turn the runs as they were recorded, behind them the calls that were never
    answered."""
    played = traced.trajectory
    runs = [(number, run) for number, turn in enumerate(played.turns, start=1) for run in turn.tool_runs]
    answered = {run.call_id for _, run in runs}
    calls: list[Row] = [
        (turn, _to_text(run.name), run.outcome, run.num_attempts, _real(run.latency_s), _to_text(run.call_id))
        for turn, run in runs
    ]
    for turn, index in enumerate(traced.written(), start=1):
        open_calls = [call for call in played.messages[index].tool_calls if call.id not in answered]
        calls += [(turn, _to_text(call.name), None, None, None, _to_text(call.id)) for call in open_calls]
    return sorted(calls, key=itemgetter(0))


def _turns(messages: Sequence[Message], num_opening: int, turns: Sequence[Row], calls: Sequence[Row]) -> Iterator[Turn]:
    said: list[int | None] = [
        index for index in range(num_opening, len(messages)) if messages[index].role == "assistant"
    ]
    said.append(None)  # of a last turn that had no room for a message
    made = [call.id for message in messages[num_opening:] for call in message.tool_calls]
    runs: dict[int, list[ToolRun]] = {}
    for number, turn, name, outcome, num_attempts, latency_s, call_id in calls:
        if outcome is not None:
            own_id = made[number - 1] if call_id is None else _from_text(call_id)
            runs.setdefault(turn, []).append(ToolRun(own_id, _from_text(name), outcome, num_attempts, latency_s))
    for number, num_read, num_written, policy_version, latency_s, stored in turns:
        message_index = said[number - 1] if stored == UNKNOWN else stored
        yield Turn(num_read, num_written, policy_version, message_index, tuple(runs.get(number, ())), latency_s)


def _to_text(text: str) -> str | bytes:
    """As SQLite holds it: what has half of a surrogate pair as bytes, because its text is UTF-8."""
    return text if storable(text) == text else text.encode("utf-8", "surrogatepass")


def _from_text(stored: str | bytes) -> str:
    return stored if isinstance(stored, str) else stored.decode("utf-8", "surrogatepass")


def _real(number: float | None) -> float | None:
    """As a column of reals gives it back: NaN as null, and -0.0 as 0.0."""
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
