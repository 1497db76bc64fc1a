"""No replay, the default: a group has the episodes that were played, and no more."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from posttrain.runtime.knobs import Section
from posttrain.types import ScoredEpisode, Task

ExpertTraces = Callable[[Task, int], Sequence[ScoredEpisode]]  # so many of an expert's episodes of a task


class Replay:
    """Base of all methods, which adds nothing and remembers nothing. Its state is in the checkpoint
    of a training."""

    is_expert = False  # whether an expert wrote what `replayed` returns

    def hints(self, task: Task, group_size: int) -> list[float]:  # noqa: ARG002
        """For each episode of a group, the share of the expert's turns that it begins behind; empty
        for none."""
        return []

    def replayed(self, task: Task, episodes: Sequence[ScoredEpisode]) -> Sequence[ScoredEpisode]:  # noqa: ARG002
        """The episodes that join the group of `episodes`, after these have been remembered."""
        return []

    def state(self) -> Mapping[str, object]:
        """For a checkpoint, in JSON's types."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Load what `state` returned."""


class NoReplay(Section):
    """Groups are what was played."""

    type: Literal["none"]

    def make(self, _traces: ExpertTraces | None) -> Replay:
        return Replay()
