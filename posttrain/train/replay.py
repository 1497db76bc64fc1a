"""Replay: episodes that join a group besides those played in the step, or are begun for it. Each
method is its knobs, a class with `make`, and what it does. An expert's traces and hints are
oracles: they know what no other method is told."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from posttrain.runtime.knobs import Section, SmallCount
from posttrain.types import ScoredEpisode, Task

ExpertTraces = Callable[[Task, int], Sequence[ScoredEpisode]]  # so many of an expert's episodes of a task


class Replay:
    """The default: adds nothing and remembers nothing. Its state is in the checkpoint."""

    def hints(self, task: Task, group_size: int) -> list[float]:  # noqa: ARG002
        """For each episode of a group, the share of the expert's turns that it begins behind."""
        return []

    def replayed(self, task: Task, episodes: Sequence[ScoredEpisode]) -> Sequence[ScoredEpisode]:  # noqa: ARG002
        """Episodes of an expert that join the group of `episodes`, after these have been
        remembered."""
        return []

    def state(self) -> Mapping[str, object]:
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Load what `state` returned."""


class NoReplay(Section):
    """Groups are what was played."""

    type: Literal["none"]

    def make(self, _traces: ExpertTraces | None) -> Replay:
        return Replay()


class ExpertReplay(Section):
    """`count` traces of the world's expert are members of every group (LUFFY): an oracle. Their
    tokens' probability p is made likelier through p / (p + `gamma`), or through log p where gamma
    is null."""

    example: ClassVar[str] = "{count: 1, gamma: 0.1}"
    knob: ClassVar[str] = "join.type expert"
    type: Literal["expert"]
    count: SmallCount
    gamma: Annotated[float, Field(gt=0)] | None

    def make(self, traces: ExpertTraces | None) -> "ExpertEpisodes":
        assert traces is not None
        return ExpertEpisodes(traces, self.count)


class ExpertEpisodes(Replay):
    """Adds `count` of the traces to each group (arXiv 2504.14945)."""

    def __init__(self, traces: ExpertTraces, count: int) -> None:
        self._traces, self._count = traces, count

    def replayed(self, task: Task, _episodes: Sequence[ScoredEpisode]) -> Sequence[ScoredEpisode]:
        return self._traces(task, self._count)


class EditReplay(Section):
    """The branch behind a verified edit (`posttrain debug`) is a member of its task's groups, as an
    expert's trace is; `gamma` as there."""

    example: ClassVar[str] = "{gamma: 0.1}"
    type: Literal["edits"]
    gamma: Annotated[float, Field(gt=0)] | None

    def make(self, traces: ExpertTraces | None) -> "ExpertEpisodes":
        assert traces is not None
        return ExpertEpisodes(traces, 1)


class HintReplay(Section):
    """`share` of a group's episodes begin behind the first turns of the world's expert: an oracle.
    The share of its turns that is given begins at `start` for each task and falls by `step` with
    each group in which one succeeded."""

    example: ClassVar[str] = "{share: 0.5, start: 0.75, step: 0.25}"
    knob: ClassVar[str] = "join.type hints"
    type: Literal["hints"]
    share: Annotated[float, Field(gt=0, le=1)]
    start: Annotated[float, Field(gt=0, le=1)]
    step: Annotated[float, Field(gt=0, le=1)]

    def make(self, _traces: ExpertTraces | None) -> "Hints":
        return Hints(self)


class Hints(Replay):
    def __init__(self, params: HintReplay) -> None:
        self._params = params
        self._num_won: dict[str, int] = {}

    def hints(self, task: Task, group_size: int) -> list[float]:
        """Eight episodes at a share of 0.5, with 0.75 at first and 0.25 fewer, after one group
        with a success: 0.5 four times, then 0 four times."""
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


ReplayParams = Annotated[NoReplay | ExpertReplay | EditReplay | HintReplay, Field(discriminator="type")]
