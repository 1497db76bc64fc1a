"""What joins groups, by the choice in params.yaml."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from posttrain.train.online.episode_groups import EpisodeGroup
from posttrain.train.replay.best import BestEpisodes
from posttrain.train.replay.expert import ExpertJoins, Shown
from posttrain.train.replay.hints import Hints
from posttrain.train.replay.nothing import NothingJoins
from posttrain.train.replay.params import JoinParams, JoinsBest, JoinsExpert, JoinsHints, JoinsNothing
from posttrain.types import ScoredEpisode, Task


class Joining(Protocol):
    """What is a member of a group besides what its task's episodes played, or stands at their
    beginning. Its state is in the checkpoint of a training."""

    def hints(self, task: Task, group_size: int) -> list[float]:
        """Of each episode of a group the share of the expert's turns that it begins behind; nothing
        where none are given."""
        ...

    def join(self, task: Task, played: Sequence[ScoredEpisode]) -> EpisodeGroup:
        """The group of `played`, what is remembered of them, and what joins them."""
        ...

    def state(self) -> Mapping[str, object]: ...

    def restore(self, state: Mapping[str, object]) -> None: ...


def make_joining(params: JoinParams, shown: Shown | None) -> Joining:
    """`shown` gives an expert's traces of a task. Raises ValueError where they are to join and
    there are none."""
    match params:
        case JoinsNothing():
            return NothingJoins()
        case JoinsExpert(count=count):
            if shown is None:
                raise ValueError("join is expert, and nobody shows what the expert does: give the setup its traces")
            return ExpertJoins(shown, count=count)
        case JoinsBest():
            return BestEpisodes()
        case JoinsHints(share=share, start=start, step=step):
            return Hints(share=share, start=start, step=step)
