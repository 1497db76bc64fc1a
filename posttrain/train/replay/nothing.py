"""A group is what was played."""

from collections.abc import Mapping, Sequence
from typing import Any

from posttrain.train.online.episode_groups import EpisodeGroup
from posttrain.types import ScoredEpisode, Task


class NothingJoins:
    """What others begin from: no hints, nothing joins, nothing is remembered."""

    def hints(self, task: Task, group_size: int) -> list[float]:  # noqa: ARG002 the protocol's
        return []

    def join(self, task: Task, played: Sequence[ScoredEpisode]) -> EpisodeGroup:
        return EpisodeGroup(task, played)

    def state(self) -> Mapping[str, object]:
        return {}

    def restore(self, state: Mapping[str, Any]) -> None: ...
