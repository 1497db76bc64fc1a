"""How much of the expert's way is given away: for each task less with each group in which one
succeeded."""

from collections.abc import Mapping, Sequence
from typing import Any

from posttrain.train.online.episode_groups import EpisodeGroup
from posttrain.train.replay.nothing import NothingJoins
from posttrain.types import ScoredEpisode, Task


class Hints(NothingJoins):
    """`share` of a group's episodes begin behind `start` of the expert's turns at first, behind
    `step` fewer with each group of the task in which one succeeded, until behind none."""

    def __init__(self, *, share: float, start: float, step: float) -> None:
        self._share, self._start, self._step = share, start, step
        self._num_won: dict[str, int] = {}

    def hints(self, task: Task, group_size: int) -> list[float]:
        """Of eight episodes at a share of 0.5, with 0.75 at first and 0.25 fewer, after one group
        with a success: 0.5 four times, then 0 four times."""
        num_hinted = round(self._share * group_size)
        given = max(0.0, self._start - self._step * self._num_won.get(task.task_id, 0))
        return [given] * num_hinted + [0.0] * (group_size - num_hinted)

    def join(self, task: Task, played: Sequence[ScoredEpisode]) -> EpisodeGroup:
        """What was played, and whether one succeeded is remembered."""
        is_won = any(one.is_success for one in played)
        self._num_won[task.task_id] = self._num_won.get(task.task_id, 0) + is_won
        return EpisodeGroup(task, played)

    def state(self) -> Mapping[str, object]:
        """As JSON has it, for a checkpoint."""
        return dict(self._num_won)

    def restore(self, state: Mapping[str, Any]) -> None:
        """The reverse."""
        self._num_won = dict(state)
