"""What a training online is made of besides its knobs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from posttrain.models.codec import TokenRow
from posttrain.rollout.generator import EpisodeSource
from posttrain.train.replay.expert import Shown
from posttrain.types import ScoredEpisode, Task

Hear = Callable[[int, Sequence[ScoredEpisode], Sequence[float]], None]


@dataclass(frozen=True, slots=True)
class TrainingInputs:
    """`tasks` are played to learn, `dev_tasks` greedily to see how far it got, by `play_greedily`
    with the weights as they are. `shown` gives a number of an expert's traces of a task, with
    tokens and rewards; None where none are to join. `score_weights`: what the rewards are sums of.
    `on_step` hears of a step, its episodes and their mean advantages, before they are learnt from;
    of `demonstrations` the loss is told."""

    tasks: Sequence[Task]
    source: EpisodeSource
    demonstrations: Sequence[TokenRow] = ()
    on_step: Hear = lambda *_: None
    dev_tasks: Sequence[Task] = ()
    play_greedily: Callable[[Sequence[Task]], Sequence[ScoredEpisode]] = lambda _: ()
    shown: Shown | None = None
    score_weights: Mapping[str, float] = field(default_factory=dict)
