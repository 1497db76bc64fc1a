"""Episodes that cost money are not played twice: each is written down as it ends, and a stage that
is run again goes on behind them.

A line has a checksum, because it becomes a stage's output: one that was cut off or changed costs
its episode, which is played again.
"""

import json
import sys
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from posttrain.data.schemas import trajectory_columns, trajectory_from_columns
from posttrain.rollout.episodes import play_episodes
from posttrain.rollout.params import AgentParams
from posttrain.rollout.policy import Policy
from posttrain.runtime.exits import ConfigurationError
from posttrain.types import Task, Trajectory
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
    with file.open("ab") as lines:

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


def _line(index: int, trajectory: Trajectory) -> bytes:
    record = {"index": index, **trajectory_columns(trajectory)}
    text = json.dumps({**record, "checksum": _checksum(record)}, ensure_ascii=False)
    return text.encode("utf-8", "backslashreplace") + b"\n"  # half of a surrogate pair becomes JSON's escape of it


def _checksum(record: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(record, sort_keys=True).encode())


def _whole_lines(file: Path) -> list[tuple[int, Trajectory]]:
    """The episodes and their indices as they were written; the others are taken out of the file, or
    the next line would be appended to one that was cut off."""
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


def _record(line: bytes) -> tuple[int, Trajectory] | None:
    try:
        record = json.loads(line)
        if line.endswith(b"\n") and record.pop("checksum") == _checksum(record):
            return record["index"], trajectory_from_columns(record)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        pass
    return None


def _played(
    whole: Iterable[tuple[int, Trajectory]], tasks: Sequence[Task], seeds: Sequence[int]
) -> dict[int, Trajectory]:
    """By index. An episode of another task or seed, which another order of tasks would leave, is
    not taken."""
    return {
        index: trajectory
        for index, trajectory in whole
        if index < len(tasks) and (trajectory.task_id, trajectory.seed) == (tasks[index].task_id, seeds[index])
    }
