"""Runs episodes that cost money (an endpoint's) once: each is appended to a file as it ends, and a
stage that is run again goes on behind them."""

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from posttrain.data.schemas import trajectory_columns, trajectory_from_columns
from posttrain.rollout.episodes import run_episodes
from posttrain.rollout.params import AgentParams
from posttrain.rollout.policy import Policy
from posttrain.runtime.exits import ConfigurationError
from posttrain.types import Task, Trajectory
from posttrain.worlds.protocol import Domain


def resume_episodes(
    policy: Policy,
    tasks: Sequence[Task],
    file: Path,
    *,
    domain: Domain,
    limits: AgentParams,
    seeds: Sequence[int],
    progress: Callable[[int, int], None] | None = None,
) -> list[Trajectory]:
    """`run_episodes`, for a policy without tokens, of the episodes that `file` does not hold yet.

    Lines that cannot be read (the last one, after a kill) are dropped with a warning, and their
    episodes run again. Aborted episodes are not appended: another run may complete them. Raises
    ConfigurationError where `file` cannot be read.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    found = _matching(_read_lines(file), tasks, seeds)
    missing = [index for index in range(len(tasks)) if index not in found]
    with file.open("ab") as lines:

        def append(place: int, trajectory: Trajectory) -> None:
            lines.write(_line(missing[place], trajectory))
            lines.flush()

        run = run_episodes(
            policy,
            [tasks[index] for index in missing],
            domain=domain,
            limits=limits,
            seeds=[seeds[index] for index in missing],
            progress=(lambda done, _: progress(len(found) + done, len(tasks))) if progress else None,
            on_end=append,
        )
    by_index = found | dict(zip(missing, run, strict=True))
    return [by_index[index] for index in range(len(tasks))]


def _line(index: int, trajectory: Trajectory) -> bytes:
    text = json.dumps({"index": index, **trajectory_columns(trajectory)}, ensure_ascii=False)
    return text.encode("utf-8", "backslashreplace") + b"\n"  # half of a surrogate pair becomes JSON's escape of it


def _read_lines(file: Path) -> list[tuple[int, Trajectory]]:
    """Indices and episodes. Unreadable lines are taken out of the file, or the next line would be
    appended to one that was cut off."""
    try:
        lines = file.read_bytes().splitlines(keepends=True) if file.exists() else []
    except OSError as error:
        raise ConfigurationError(
            f"{file} holds earlier episodes and cannot be read ({error.strerror}): move it away and run again"
        ) from error
    records = [_record(line) for line in lines]
    whole = [record for record in records if record is not None]
    if len(whole) < len(lines):
        print(
            f"{file}: {len(lines) - len(whole)} of {len(lines)} lines are damaged or cut off; "
            "their episodes are run again",
            file=sys.stderr,
        )
        partial = file.with_name(f".{file.name}.partial")
        partial.write_bytes(b"".join(line for line, record in zip(lines, records, strict=True) if record is not None))
        partial.replace(file)
    return whole


def _record(line: bytes) -> tuple[int, Trajectory] | None:
    try:
        record = json.loads(line)
        return (int(record["index"]), trajectory_from_columns(record)) if line.endswith(b"\n") else None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None


def _matching(
    whole: Iterable[tuple[int, Trajectory]], tasks: Sequence[Task], seeds: Sequence[int]
) -> dict[int, Trajectory]:
    """Episodes by index. One of another task or seed, left by another order of tasks, is not
    taken."""
    return {
        index: trajectory
        for index, trajectory in whole
        if index < len(tasks) and (trajectory.task_id, trajectory.seed) == (tasks[index].task_id, seeds[index])
    }
