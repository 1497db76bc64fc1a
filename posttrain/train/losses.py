"""Losses of tokens: the objectives, the divergence from the first model, and the importance
weights. Knobs are read where torch is not installed, so tensors are handled by their methods."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from posttrain.runtime.knobs import Section, SmallCount

if TYPE_CHECKING:
    from torch import Tensor

MAX_LOG_RATIO = 20.0  # nats, of probabilities of one token by two models; verl's bound as well
LARGEST_ERROR = 0.2  # of the divergence's relative distance from its target


class Clip(Section):
    """The likelihood ratio to the policy that sampled the tokens, kept within 1 - `low` and 1 +
    `high` where that would make the step larger (PPO, DAPO's clip-higher)."""

    example: ClassVar[str] = "{low: 0.2, high: 0.2}"
    type: Literal["clip"]
    low: Annotated[float, Field(gt=0, lt=1)]
    high: Annotated[float, Field(gt=0)]


class Cispo(Section):
    """The log-likelihood times the advantage and the ratio, which is held below `cap` and not
    differentiated, so that no token loses its gradient (CISPO)."""

    example: ClassVar[str] = "{cap: 5.0}"
    type: Literal["cispo"]
    cap: Annotated[float, Field(ge=1)]


class Gspo(Section):
    """A clip of one ratio per episode: the geometric mean of its tokens' ratios (GSPO)."""

    example: ClassVar[str] = "{low: 3.0e-4, high: 4.0e-4}"
    type: Literal["gspo"]
    low: Annotated[float, Field(gt=0, lt=1)]
    high: Annotated[float, Field(gt=0)]


class Sapo(Section):
    """A sigmoid of the ratio instead of a clip: the gradient fades as the ratio leaves 1, the
    faster the higher the temperature of the advantage's sign (SAPO)."""

    example: ClassVar[str] = "{positive: 1.0, negative: 1.05}"
    type: Literal["sapo"]
    positive: Annotated[float, Field(gt=0)]
    negative: Annotated[float, Field(gt=0)]


class PolicyGradient(Section):
    """The likelihood ratio times the advantage, without a clip."""

    example: ClassVar[str] = "{}"
    type: Literal["policy_gradient"]


Objective = Annotated[Clip | Cispo | Gspo | Sapo | PolicyGradient, Field(discriminator="type")]


class NoKl(Section):
    """Nothing holds the policy to the model that training began from. That model is kept all the
    same, for the metric `kl` and its alarm; without `is_measured` it is not, which spares a copy of
    the weights where no adapters are trained."""

    type: Literal["none"]
    is_measured: bool = True


KlEstimator = Literal["k3", "unbiased", "k2"]


class KlLoss(Section):
    """`weight` times the divergence from that model is part of the loss, a token at a time, by an
    `estimator`. `k3` (GRPO's) pulls the policy to where that model's probability is, whatever its
    own; `unbiased` (the same times the ratio to the policy that played, TRL's default) and `k2`
    (half the squared log-ratio) pull it off what that model finds unlikely."""

    example: ClassVar[str] = "{weight: 0.01}"
    type: Literal["loss"]
    weight: Annotated[float, Field(gt=0)]
    estimator: KlEstimator = "k3"


class AdaptiveKl(Section):
    """The same with a weight that rises while the divergence is above `target` nats a token and
    falls below, by a fifth at most over `horizon` steps (arXiv 1909.08593, section 2.2)."""

    example: ClassVar[str] = "{weight: 0.01, target: 0.05, horizon: 10}"
    type: Literal["adaptive"]
    weight: Annotated[float, Field(gt=0)]
    target: Annotated[float, Field(gt=0)]
    horizon: SmallCount
    estimator: KlEstimator = "k3"


KlParams = Annotated[NoKl | KlLoss | AdaptiveKl, Field(discriminator="type")]


def token_losses(
    log_ratio_N_T: Tensor, advantages_N_T: Tensor, objective: Objective, *, is_scored_N_T: Tensor
) -> Tensor:
    """Policy-gradient loss of each token, of the shape of `log_ratio`: log of its probability now
    over that before the step's first update, of which what is above 20 counts as 20. Losses of
    tokens that are not scored mean nothing.

    `clip` (PPO, arXiv 1707.06347, eq. 7; two sides: DAPO, arXiv 2503.14476, eq. 8): at a ratio of
    1.5, an advantage of 1 and high 0.2 the loss is -1.2, without a gradient; at -1 it is 1.5.
    `gspo` (arXiv 2507.18071, eq. 5 and 7): the same of the geometric mean of the episode's ratios.
    `cispo` (arXiv 2506.13585, eq. 4): min(ratio, cap), not differentiated, times the gradient of
    log p. `sapo` (arXiv 2511.20347): 4/t sigmoid(t (ratio - 1)), of slope 1 at a ratio of 1.
    """
    ratio = _ratio(log_ratio_N_T)
    match objective:
        case PolicyGradient():
            return -ratio * advantages_N_T  # whose gradient at a ratio of 1 is that of -A log p
        case Clip(low=low, high=high):
            return _clipped(ratio, advantages_N_T, low, high)
        case Gspo(low=low, high=high):
            # one ratio a row, broadcast over its tokens: (N, 1) against (N, T)
            return _clipped(_ratio(_mean_over_rows(log_ratio_N_T, is_scored_N_T)), advantages_N_T, low, high)
        case Cispo(cap=cap):
            # the ratio weighs the gradient of log p and has none itself
            return -ratio.detach().clamp(max=cap) * advantages_N_T * log_ratio_N_T
        case Sapo(positive=positive, negative=negative):
            temperature = advantages_N_T.new_full(advantages_N_T.shape, negative).masked_fill(
                advantages_N_T > 0, positive
            )
            # 4/t makes the slope 1 where the ratio is 1, whatever the temperature
            return -(temperature * (ratio - 1)).sigmoid() * 4 / temperature * advantages_N_T


def clip_side(log_ratio_N_T: Tensor, advantages_N_T: Tensor, objective: Objective, *, is_scored_N_T: Tensor) -> Tensor:
    """-1 where the objective holds a token's ratio from below, 1 from above, else 0."""
    match objective:
        case Clip(low=low, high=high):
            ratio = log_ratio_N_T.exp()
        case Gspo(low=low, high=high):
            ratio = _mean_over_rows(log_ratio_N_T, is_scored_N_T).exp()
        case Cispo(cap=cap):
            return (log_ratio_N_T.exp() > cap).float()
        case Sapo() | PolicyGradient():
            return log_ratio_N_T.new_zeros(log_ratio_N_T.shape)
    # a ratio is held only where moving it on would lower the loss
    is_low, is_high = (ratio < 1 - low) & (advantages_N_T < 0), (ratio > 1 + high) & (advantages_N_T > 0)
    return is_high.float() - is_low.float()


def expert_losses(logprobs_N_T: Tensor, advantages_N_T: Tensor, *, gamma: float | None) -> Tensor:
    """The advantage times p / (p + gamma), p being the probability now of a token that an expert
    wrote (LUFFY, arXiv 2504.14945, eq. 7, the expert's taken as 1): the gradient of log p is
    weighed by gamma p / (p + gamma)², most where p is gamma. Without gamma, the advantage times
    log p: supervised learning. At p = 0.1 and gamma 0.1: -1/2 and a weight of 1/4."""
    if gamma is None:
        return -advantages_N_T * logprobs_N_T
    p = logprobs_N_T.exp()
    return -advantages_N_T * p / (p + gamma)


def importance_weights(trainer_logprobs: Tensor, engine_logprobs: Tensor, *, cap: float) -> Tensor:
    """min(exp(trainer - engine), cap): an engine rounds in other places, and one that generates
    ahead has older weights.

    Without the cap the variance would have no bound (truncated importance sampling, Ionides 2008;
    for RL of language models https://fengyao.notion.site/off-policy-rl). Log-probs -1 and -2 give
    e, so 2 under a cap of 2.
    """
    return (trainer_logprobs - engine_logprobs).exp().clamp(max=cap)


def kl_estimates(now_N_T: Tensor, reference_N_T: Tensor, before_N_T: Tensor, estimator: KlEstimator) -> Tensor:
    """Divergence estimate of each token, which was drawn by `before`, from r = p_reference / p_now.

    `k3`: r - 1 - log r, never negative (joschu.net/blog/kl-approx.html; GRPO, arXiv 2402.03300,
    eq. 4). Probabilities 1/2 and 1/4: 1/2 - 1 + log 2 = 0.193. `k2`: (log r)^2 / 2. `unbiased`: k3
    times p_now / p_before (DeepSeek-V3.2, arXiv 2512.02556; TRL's `use_bias_correction_kl`).

    The value of k3 is unbiased: over tokens of the policy p it is KL(p || ref) in expectation, as
    E[r] is 1. Its gradient is another KL's. dr = -r d(log p), so a token's gradient is (1 - r) grad
    log p, and

        sum of p (1 - r) grad log p = - sum of ref grad log p = grad KL(ref || p),

    as the sum of p grad log p is 0. That of KL(p || ref) has -log r in the place of 1 - r:

        grad sum of p (log p - log ref) = sum of p (-log r + 1) grad log p.

    It is the gradient of k2, d((log r)^2 / 2) = -log r d(log p), whose value is of no divergence;
    and of `unbiased`, whose ratio w = p_now / p_before has dw = w d(log p):

        d(w k3) = w (r - 1 - log r + 1 - r) d(log p) = -w log r d(log p).

    On policy w is 1: k2 and `unbiased` are exactly grad KL(p || ref), k3 grad KL(ref || p). From a
    step's second update on tokens are those of older weights, and `unbiased` alone is exact. All
    are of the next token alone: that the policy also chooses what later tokens stand behind is in
    none.
    """
    log_ratio = reference_N_T - now_N_T
    if estimator == "k3":
        return _k3(log_ratio)
    halved = log_ratio.square() / 2
    if estimator == "k2":
        return halved
    # the terms r of its gradient cancel, which in float32 would leave their rounding
    importance = _ratio(now_N_T - before_N_T).detach()
    return importance * (halved + (_k3(log_ratio) - halved).detach())


class KlWeight:
    """Weight of the divergence in the next step's loss: constant, or `adaptive`, the controller of
    arXiv 1909.08593, section 2.2, whose K_beta is 1/horizon (0.1 there):

        e = clip((KL - target) / target, -0.2, 0.2),  beta <- beta (1 + K_beta e)

    A weight of 0.01, a target of 0.05 nats a token and a horizon of 10: at 0.055 it becomes 0.01 (1
    + 0.1/10) = 0.0101; at 1 0.0102; at 0 0.0098.
    """

    def __init__(self, params: KlParams) -> None:
        self._params = params
        self.weight = 0.0 if isinstance(params, NoKl) else params.weight

    def observe(self, kl: float) -> None:
        """Adapt the weight to a step's divergence, in nats a token; an estimate may be below 0."""
        if math.isnan(kl):
            raise ValueError(f"the divergence from the first model is {kl}: the policy has diverged; lower its lr")
        if isinstance(self._params, AdaptiveKl):
            error = min(max(kl / self._params.target - 1, -LARGEST_ERROR), LARGEST_ERROR)
            self.weight *= 1 + error / self._params.horizon

    def state(self) -> Mapping[str, object]:
        return {"weight": self.weight}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.weight = state["weight"]


def _clipped(ratio: Tensor, advantages: Tensor, low: float, high: float) -> Tensor:
    # the smaller of the two: a clip never makes the loss look better than it is
    return -(ratio * advantages).minimum(ratio.clamp(1 - low, 1 + high) * advantages)


def _mean_over_rows(log_ratio_N_T: Tensor, is_scored_N_T: Tensor) -> Tensor:
    """Mean over a row's scored tokens, shape (N, 1)."""
    count_N_1 = is_scored_N_T.sum(1, keepdim=True).clamp(min=1)
    return (log_ratio_N_T * is_scored_N_T).sum(1, keepdim=True) / count_N_1


def _ratio(log_ratio: Tensor) -> Tensor:
    """exp of it, constant from e^20 on: e^90 is infinite in float32, and 0 times that a NaN."""
    return log_ratio.clamp(max=MAX_LOG_RATIO).exp()


def _k3(log_ratio: Tensor) -> Tensor:
    # r grows without a bound; below 1 the gradient is below 1 as well
    log_ratio = log_ratio.clamp(max=MAX_LOG_RATIO)
    return log_ratio.expm1() - log_ratio  # expm1: near r = 1, exp(x) - 1 would lose all its digits
