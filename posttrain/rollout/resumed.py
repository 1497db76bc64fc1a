"""Episodes that cost money are not played twice: each is written down as it ends, and a stage that
is run again goes on behind them.

A line has a checksum, because it becomes a stage's output: one that was cut off or changed costs
its episode, which is played again.
"""

import json
import sys
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from posttrain.exits import ConfigurationError
from posttrain.params import AgentParams
from posttrain.rollout.episodes import play_episodes
from posttrain.rollout.policy import Policy
from posttrain.types import Message, StopReason, Task, Trajectory
from posttrain.worlds.protocol import Domain


def play_resumably(
    policy: Policy,
    tasks: Sequence[Task],
    file: Path,
    *,
    domain: Domain,
    limits: AgentParams,
    seeds: Sequence[int],
    progress: Callable[[int, int], None] | None = None,
) -> list[Trajectory]:
    """As `play_episodes` for a policy without tokens, but for the episodes that `file` holds. Lines
    that are not as they were written are dropped with a word; lost episodes are not written down,
    so that another run may save them. Raises ConfigurationError where `file` cannot be read."""
    file.parent.mkdir(parents=True, exist_ok=True)
    played = _played(_whole_lines(file), tasks, seeds)
    left = [index for index in range(len(tasks)) if index not in played]
    with file.open("a", encoding="utf-8") as lines:

        def keep(place: int, trajectory: Trajectory) -> None:
            lines.write(_line(left[place], trajectory))
            lines.flush()

        later = play_episodes(
            policy,
            [tasks[index] for index in left],
            domain=domain,
            limits=limits,
            seeds=[seeds[index] for index in left],
            progress=(lambda done, _: progress(len(played) + done, len(tasks))) if progress else None,
            on_end=keep,
        )
    played_now = dict(zip(left, later, strict=True))
    return [played_now[index] if index in played_now else played[index] for index in range(len(tasks))]


def _line(index: int, trajectory: Trajectory) -> str:
    record = {
        "index": index,
        "task_id": trajectory.task_id,
        "seed": trajectory.seed,
        "stop_reason": trajectory.stop_reason,
        "messages": [message.to_openai() for message in trajectory.messages],
    }
    return json.dumps({**record, "checksum": _checksum(record)}, ensure_ascii=False) + "\n"


def _checksum(record: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(record, sort_keys=True).encode())


def _whole_lines(file: Path) -> list[dict[str, Any]]:
    """The records as they were written; the others are taken out of the file, or the next line
    would be appended to one that was cut off."""
    try:
        lines = file.read_bytes().splitlines(keepends=True) if file.exists() else []
    except OSError as error:
        raise ConfigurationError(
            f"{file} holds the episodes played before and cannot be read ({error.strerror}): move it away and run again"
        ) from error
    records = [_record(line) for line in lines]
    whole = [record for record in records if record is not None]
    if len(whole) < len(lines):
        print(
            f"{file}: {len(lines) - len(whole)} of {len(lines)} lines are damaged or cut off; "
            "their episodes are played again",
            file=sys.stderr,
        )
        partial = file.with_name(f".{file.name}.partial")
        partial.write_bytes(b"".join(line for line, record in zip(lines, records, strict=True) if record is not None))
        partial.replace(file)
    return whole


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
        if line.endswith(b"\n") and record.pop("checksum") == _checksum(record):
            return {
                **record,
                "messages": tuple(map(Message.from_openai, record["messages"])),
                "stop_reason": StopReason(record["stop_reason"]),
            }
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        pass
    return None


def _played(records: Sequence[dict[str, Any]], tasks: Sequence[Task], seeds: Sequence[int]) -> dict[int, Trajectory]:
    """By index. A record of another task or seed, which another order of tasks would leave, is not
    taken."""
    played = {}
    for record in records:
        index, task_id, seed = record["index"], record["task_id"], record["seed"]
        if index < len(tasks) and (task_id, seed) == (tasks[index].task_id, seeds[index]):
            played[index] = Trajectory(task_id, record["messages"], record["stop_reason"], seed=seed)
    return played
