"""Divergence from the model that training began from: its knobs, its estimate, and its weight in
the loss. Tensors are handled by their methods: knobs are read where torch is not installed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from posttrain.runtime.knobs import Section, SmallCount

if TYPE_CHECKING:
    from torch import Tensor

LARGEST_ERROR = 0.2  # of the divergence's relative distance from its target


class NoKl(Section):
    """Nothing holds the policy to the model that training began from. That model is kept all the
    same, for the metric `kl` and its alarm; without `is_measured` it is not, which spares a copy of
    the weights where no adapters are trained."""

    type: Literal["none"]
    is_measured: bool = True


class KlLoss(Section):
    """`weight` times the divergence from that model is part of the loss (GRPO's estimate, a token
    at a time)."""

    example: ClassVar[str] = "{weight: 0.01}"
    type: Literal["loss"]
    weight: Annotated[float, Field(gt=0)]


class AdaptiveKl(Section):
    """The same with a weight that rises while the divergence is above `target` nats a token and
    falls below, by a fifth at most over `horizon` steps (arXiv 1909.08593, section 2.2)."""

    example: ClassVar[str] = "{weight: 0.01, target: 0.05, horizon: 10}"
    type: Literal["adaptive"]
    weight: Annotated[float, Field(gt=0)]
    target: Annotated[float, Field(gt=0)]
    horizon: SmallCount


KlParams = Annotated[NoKl | KlLoss | AdaptiveKl, Field(discriminator="type")]


def kl_estimates(now_N_T: Tensor, reference_N_T: Tensor) -> Tensor:
    """Divergence estimate of each token: r - 1 - log r with r = p_reference / p_now, from
    the log-probs of both, of their shape; never negative, 0 where both are equal (k3 of
    joschu.net/blog/kl-approx.html; GRPO, arXiv 2402.03300, eq. 4). Probabilities 1/2 and 1/4: 1/2 -
    1 + log 2 = 0.193.

    Its value is unbiased: over tokens of the policy p it is KL(p || ref) in expectation, as E[r] is
    1. Its gradient is not that of this KL. dr = -r d(log p), so a token's gradient is (1 - r) grad
    log p, and

        sum of p (1 - r) grad log p = - sum of ref grad log p = grad KL(ref || p),

    as the sum of p grad log p is 0: on policy it is exactly the gradient of KL(ref || p). That of
    KL(p || ref) would have -log r in the place of 1 - r; near r = 1 both are one to first order.
    Both are of the next token alone: that the policy also chooses what later tokens stand behind is
    in neither. From a step's second update on the tokens are those of older weights, and neither is
    exact.
    """
    log_ratio = reference_N_T - now_N_T
    return log_ratio.expm1() - log_ratio


class KlWeight:
    """Weight of the divergence in the next step's loss: constant, or `adaptive`, the controller of
    arXiv 1909.08593, section 2.2, whose K_beta is 1/horizon (0.1 there):

        e = clip((KL - target) / target, -0.2, 0.2),  beta <- beta (1 + K_beta e)

    A weight of 0.01, a target of 0.05 nats a token and a horizon of 10: at 0.055 it becomes 0.01
    (1 + 0.1/10) = 0.0101; at 1, however far above, 0.0102; at 0, 0.0098.
    """

    def __init__(self, params: KlParams) -> None:
        self._params = params
        self.weight = 0.0 if isinstance(params, NoKl) else params.weight

    def observe(self, kl: float) -> None:
        """Adapt the weight to a step's divergence, in nats a token; an estimate may be below 0.
        Raises ValueError for one that is no number: the weight would be none from there on."""
        if math.isnan(kl):
            raise ValueError(f"the divergence from the first model is {kl}: the policy has diverged; lower its lr")
        if isinstance(self._params, AdaptiveKl):
            error = min(max(kl / self._params.target - 1, -LARGEST_ERROR), LARGEST_ERROR)
            self.weight *= 1 + error / self._params.horizon

    def state(self) -> Mapping[str, object]:
        """For a checkpoint, in JSON's types."""
        return {"weight": self.weight}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Load what `state` returned."""
        self.weight = state["weight"]
