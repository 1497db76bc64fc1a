"""Episodes that begin behind an expert's first turns, fewer with each group of the task in which
one succeeded."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from posttrain.runtime.knobs import Section
from posttrain.train.replay.none import ExpertTraces, Replay
from posttrain.types import ScoredEpisode, Task


class HintReplay(Section):
    """`share` of a group's episodes begin behind the first turns of the world's expert: an oracle.
    The share of its turns that is given begins at `start` for each task and falls by `step` with
    each group in which one succeeded."""

    example: ClassVar[str] = "{share: 0.5, start: 0.75, step: 0.25}"
    knob: ClassVar[str] = "train_policy.algorithm.join.type hints"
    type: Literal["hints"]
    share: Annotated[float, Field(gt=0, le=1)]
    start: Annotated[float, Field(gt=0, le=1)]
    step: Annotated[float, Field(gt=0, le=1)]

    def make(self, _traces: ExpertTraces | None) -> "Hints":
        return Hints(self)


class Hints(Replay):
    """Counts for each task the groups with a success."""

    def __init__(self, params: HintReplay) -> None:
        self._params = params
        self._num_won: dict[str, int] = {}

    def hints(self, task: Task, group_size: int) -> list[float]:
        """Eight episodes at a share of 0.5, with 0.75 at first and 0.25 fewer, after one group with
        a success: 0.5 four times, then 0 four times."""
        num_hinted = round(self._params.share * group_size)
        given = max(0.0, self._params.start - self._params.step * self._num_won.get(task.task_id, 0))
        return [given] * num_hinted + [0.0] * (group_size - num_hinted)

    def replayed(self, task: Task, episodes: Sequence[ScoredEpisode]) -> Sequence[ScoredEpisode]:
        is_won = any(one.is_success for one in episodes)
        self._num_won[task.task_id] = self._num_won.get(task.task_id, 0) + is_won
        return []

    def state(self) -> Mapping[str, object]:
        return dict(self._num_won)

    def restore(self, state: Mapping[str, Any]) -> None:
        self._num_won = dict(state)
