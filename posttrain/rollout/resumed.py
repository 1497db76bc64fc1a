"""Episodes that cost money are not played twice: each is written down as it ends, and a stage that is run again goes on behind them."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

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
    """As `play_episodes` for a policy without tokens, but for the episodes that `file` holds. A line cut off in the middle is played again; lost
    episodes are not written down, so that another run may save them."""
    played = _read(file, tasks, seeds)
    left = [index for index in range(len(tasks)) if index not in played]
    file.parent.mkdir(parents=True, exist_ok=True)
    _drop_cut_line(file)
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
    return json.dumps(record, ensure_ascii=False) + "\n"


def _read(file: Path, tasks: Sequence[Task], seeds: Sequence[int]) -> dict[int, Trajectory]:
    """By index. A line of another task or seed, which another order of tasks would leave, is not taken."""
    played = {}
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else []:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        index, task_id, seed = record["index"], record["task_id"], record["seed"]
        if index < len(tasks) and (task_id, seed) == (tasks[index].task_id, seeds[index]):
            messages = tuple(map(Message.from_openai, record["messages"]))
            played[index] = Trajectory(task_id, messages, StopReason(record["stop_reason"]), seed=seed)
    return played


def _drop_cut_line(file: Path) -> None:
    """Or the next line would be appended to it."""
    if file.exists():
        content = file.read_bytes()
        file.write_bytes(content[: content.rfind(b"\n") + 1])
