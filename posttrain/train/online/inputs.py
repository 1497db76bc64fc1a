"""Inputs of an online training besides its knobs: tasks, where episodes come from, and who is told
of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from posttrain.models.codec import TokenRow
from posttrain.rollout.generator import EpisodeSource
from posttrain.train.replay.none import ExpertTraces
from posttrain.types import ScoredEpisode, Task

OnStep = Callable[[int, Sequence[ScoredEpisode], Sequence[float]], None]


@dataclass(frozen=True, slots=True)
class TrainingInputs:
    """`tasks` are trained on; `dev_tasks` are evaluated by `play_greedily`, with the weights as
    they are. `demonstrations`: rows whose loss is logged. `on_step` is called with a step, its
    episodes and their mean advantages before they are trained on. `expert`: gives a number of an
    expert's traces of a task, tokens and rewards included; None where none are replayed.
    `score_weights`: of the terms of the reward."""

    tasks: Sequence[Task]
    source: EpisodeSource
    demonstrations: Sequence[TokenRow] = ()
    on_step: OnStep = lambda *_: None
    dev_tasks: Sequence[Task] = ()
    play_greedily: Callable[[Sequence[Task]], Sequence[ScoredEpisode]] = lambda _: ()
    expert: ExpertTraces | None = None
    score_weights: Mapping[str, float] = field(default_factory=dict)
