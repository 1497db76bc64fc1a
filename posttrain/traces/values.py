"""Records of the trace store: an episode with its task and its stage's figures, and a stage's
run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posttrain.types import Task, Trajectory


@dataclass(frozen=True, slots=True)
class TracedEpisode:
    """A trajectory with its task. `is_success`, `advantage` and `step` (an optimizer step, as in
    `metrics.jsonl`) are None where the stage has none. `part` tells episodes of one stage apart:
    `greedy`, `sampled`."""

    trajectory: Trajectory
    task: Task
    is_success: bool | None = None
    advantage: float | None = None
    step: int | None = None
    part: str = ""

    @property
    def is_failed(self) -> bool:
        """True where it was judged to be no success, or was aborted."""
        return self.is_success is False or self.trajectory.is_aborted

    @property
    def num_opening(self) -> int:
        """Number of messages that open the task; 0 where the agent's program opened with others."""
        opening = self.task.messages
        return len(opening) if self.trajectory.messages[: len(opening)] == opening else 0

    def written(self) -> list[int]:
        """Indices of the agent's own messages: those of its turns or, where no turns are known,
        every assistant message behind the opening."""
        trajectory = self.trajectory
        if trajectory.turns:
            return [turn.message_index for turn in trajectory.turns if turn.message_index is not None]
        behind = range(self.num_opening, len(trajectory.messages))
        return [index for index in behind if trajectory.messages[index].role == "assistant"]


@dataclass(frozen=True, slots=True)
class Run:
    """One start of a stage. `uid` is random and stays in an import; `key` names code, data and
    knobs; `started_at` is in seconds since 1970; `settings` holds the sections `world` and `agent`
    of params.yaml, which a replay needs."""

    uid: str
    stage: str
    key: str
    started_at: float
    settings: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StoredEpisode:
    """An episode as the store has it. `episode_id` is the store's own and never given out twice."""

    episode_id: int
    run: Run
    traced: TracedEpisode


def traced(
    trajectories: Sequence[Trajectory],
    tasks: Sequence[Task],
    *,
    advantages: Sequence[float] | None = None,
    step: int | None = None,
    part: str = "",
) -> list[TracedEpisode]:
    """Episodes to record: `trajectories[i]` is of `tasks[i]`, and its outcome says whether it
    succeeded. Raises ValueError where the lengths differ."""
    none: Sequence[float | None] = [None] * len(tasks)
    columns = zip(trajectories, tasks, advantages or none, strict=True)
    return [
        TracedEpisode(
            trajectory,
            task,
            None if trajectory.outcome is None else trajectory.outcome.success,
            advantage,
            step,
            part,
        )
        for trajectory, task, advantage in columns
    ]
