"""Constrained learning: the mean of a cost is held below a limit by a penalty whose weight, the
Lagrange multiplier, is learnt beside the policy."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field

from posttrain.runtime.knobs import Section
from posttrain.types import ScoredEpisode

TOKENS = "tokens"


class ConstraintParams(Section):
    """`score`: one of the world's where 1 is harm (`write_before_consent`), held to a mean of
    `max_mean` over episodes; or `tokens`, the agent's in an episode, as shares of `max_mean`. The
    multiplier starts at 0 and moves by `lr` times the excess of a mean over steps in which each
    step counts 1 - `decay`."""

    example: ClassVar[str] = "{score: write_before_consent, max_mean: 0.02, lr: 0.5, decay: 0.8, max_weight: 2.0}"
    score: str
    max_mean: Annotated[float, Field(gt=0)]
    lr: Annotated[float, Field(gt=0)]
    decay: Annotated[float, Field(ge=0, lt=1)]
    max_weight: Annotated[float, Field(gt=0)]

    def cost(self, episode: ScoredEpisode) -> float:
        """In [0, 1] for a score; 1.0 for `max_mean` tokens."""
        if self.score == TOKENS:
            return sum(episode.trajectory.mask) / self.max_mean
        return episode.trajectory.scores.get(self.score, 0.0)

    @property
    def limit(self) -> float:
        return 1.0 if self.score == TOKENS else self.max_mean


class Constraints:
    """Multipliers of a training. Every step, from the mean cost c of its episodes, a limit d and
    the running mean m (PPO-Lagrangian, Ray et al. 2019, on a smoothed cost):

        m <- decay m + (1 - decay) c,   weight <- clip(weight + lr (m - d), 0, max_weight)

    The reward less the weighted costs is what advantages are computed from: a group is normalised
    once, by the sum.
    """

    def __init__(self, params: Sequence[ConstraintParams]) -> None:
        self._params = params
        self.weights, self._means = [0.0] * len(params), [0.0] * len(params)
        self._num_steps = 0

    def charged(self, episodes: Iterable[ScoredEpisode]) -> list[ScoredEpisode]:
        """The episodes with their weighted costs taken off the bonus."""
        return [replace(one, bonus=one.bonus - self._charge(one)) for one in episodes]

    def observe(self, episodes: Iterable[ScoredEpisode]) -> dict[str, float]:
        """Move the multipliers by the episodes of a step, charged or not. Returns `cost_<score>`,
        the mean of the step, and `cost_weight_<score>`, the multiplier that it was learnt with."""
        kept, found = [one for one in episodes if not one.is_aborted], dict[str, float]()
        if not kept:
            return {}
        self._num_steps += 1
        for place, one in enumerate(self._params):
            cost = float(np.mean([one.cost(episode) for episode in kept]))
            unit = one.max_mean / one.limit
            found |= {f"cost_{one.score}": cost * unit, f"cost_weight_{one.score}": self.weights[place]}
            self._means[place] = one.decay * self._means[place] + (1 - one.decay) * cost
            mean = self._means[place] / (1 - one.decay**self._num_steps)  # without the zero that it began with
            self.weights[place] = min(max(self.weights[place] + one.lr * (mean - one.limit), 0.0), one.max_weight)
        return found

    def _charge(self, episode: ScoredEpisode) -> float:
        return sum(weight * one.cost(episode) for weight, one in zip(self.weights, self._params, strict=True))

    def state(self) -> Mapping[str, object]:
        return {"weights": [*self.weights], "means": [*self._means], "num_steps": self._num_steps}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.weights, self._means, self._num_steps = state["weights"], state["means"], state["num_steps"]
