"""Replay of an expert's traces: they are members of every group (LUFFY, arXiv 2504.14945). An
oracle: it knows what no other method is told."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from posttrain.runtime.knobs import Section, SmallCount
from posttrain.train.replay.none import ExpertTraces, Replay
from posttrain.types import ScoredEpisode, Task


class ExpertReplay(Section):
    """`count` traces of the world's expert are members of every group (LUFFY): an oracle. Their
    tokens' probability p is made likelier through p / (p + `gamma`), or through log p where gamma
    is null."""

    example: ClassVar[str] = "{count: 1, gamma: 0.1}"
    knob: ClassVar[str] = "train_policy.algorithm.join.type expert"
    type: Literal["expert"]
    count: SmallCount
    gamma: Annotated[float, Field(gt=0)] | None

    def make(self, traces: ExpertTraces | None) -> "ExpertEpisodes":
        """Raises ValueError without traces."""
        if traces is None:
            raise ValueError(f"{self.knob} replays an expert's traces and there are none: give TrainingInputs expert")
        return ExpertEpisodes(traces, self.count)


class ExpertEpisodes(Replay):
    """Adds `count` of the traces to each group."""

    is_expert = True

    def __init__(self, traces: ExpertTraces, count: int) -> None:
        self._traces, self._count = traces, count

    def replayed(self, task: Task, _episodes: Sequence[ScoredEpisode]) -> Sequence[ScoredEpisode]:
        return self._traces(task, self._count)
