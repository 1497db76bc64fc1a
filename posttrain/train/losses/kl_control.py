"""How much the divergence from the model that training began from counts in the loss: nothing, a
constant, or what holds the divergence near a target."""

import math
from collections.abc import Mapping
from typing import Any

from posttrain.train.losses.params import AdaptiveKl, KlParams, NoKl

LARGEST_ERROR = 0.2


class KlWeight:
    """`weight` is that of the step to come. `adaptive` is the controller of arXiv 1909.08593,
    section 2.2, whose K_beta is 1/horizon (0.1 there):

        e = clip((KL - target) / target, -0.2, 0.2),  beta <- beta (1 + K_beta e)

    A weight of 0.01, a target of 0.05 nats a token and a horizon of 10: at 0.055 it becomes 0.01
    (1 + 0.1/10) = 0.0101; at 1, however far above, 0.0102; at 0, 0.0098.
    """

    def __init__(self, params: KlParams) -> None:
        self._params = params
        self.weight = 0.0 if isinstance(params, NoKl) else params.weight

    def hear(self, kl: float) -> None:
        """A step's divergence, in nats a token; an estimate may be below 0. Raises ValueError for
        one that is no number: the weight would be none from there on."""
        if math.isnan(kl):
            raise ValueError(f"the divergence from the first model is {kl}: the policy has diverged; lower its lr")
        if isinstance(self._params, AdaptiveKl):
            error = min(max(kl / self._params.target - 1, -LARGEST_ERROR), LARGEST_ERROR)
            self.weight *= 1 + error / self._params.horizon

    def state(self) -> Mapping[str, object]:
        """As JSON has it, for a checkpoint."""
        return {"weight": self.weight}

    def restore(self, state: Mapping[str, Any]) -> None:
        """The reverse."""
        self.weight = state["weight"]
