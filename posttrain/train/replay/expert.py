"""The expert's traces of a task are members of every group (LUFFY, arXiv 2504.14945): an oracle."""

from collections.abc import Callable, Sequence

from posttrain.train.online.episode_groups import EpisodeGroup
from posttrain.train.replay.nothing import NothingJoins
from posttrain.types import ScoredEpisode, Task

Shown = Callable[[Task, int], Sequence[ScoredEpisode]]


class ExpertJoins(NothingJoins):
    """`count` traces that `shown` gives, with tokens and rewards."""

    def __init__(self, shown: Shown, *, count: int) -> None:
        self._shown, self._count = shown, count

    def join(self, task: Task, played: Sequence[ScoredEpisode]) -> EpisodeGroup:
        """The group with the traces."""
        return EpisodeGroup(task, played, self._shown(task, self._count), is_shown=True)
