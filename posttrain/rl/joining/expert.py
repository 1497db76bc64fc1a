"""The expert's traces of a task are members of every group (LUFFY, arXiv 2504.14945): an oracle."""

from collections.abc import Callable, Sequence

from posttrain.algorithms.rollouts import ScoredEpisode
from posttrain.rl.joining.nothing import NothingJoins
from posttrain.rl.played import PlayedGroup
from posttrain.types import Task

Shown = Callable[[Task, int], Sequence[ScoredEpisode]]


class ExpertJoins(NothingJoins):
    """`count` traces that `shown` gives, with tokens and rewards."""

    def __init__(self, shown: Shown, *, count: int) -> None:
        self._shown, self._count = shown, count

    def join(self, task: Task, played: Sequence[ScoredEpisode]) -> PlayedGroup:
        """The group with the traces."""
        return PlayedGroup(task, played, self._shown(task, self._count), is_shown=True)
