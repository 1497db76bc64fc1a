"""Objectives: the loss of a token, given how much likelier it has become and its advantage.

With one update a step the ratio to the policy that sampled the tokens is 1, and all objectives have
one gradient. Knobs are read where torch is not installed, so tensors are handled by their methods.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from posttrain.runtime.knobs import Section

if TYPE_CHECKING:
    from torch import Tensor


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


def token_losses(
    log_ratio_N_T: Tensor, advantages_N_T: Tensor, objective: Objective, *, is_scored_N_T: Tensor
) -> Tensor:
    """Policy-gradient loss of each token, of the shape of `log_ratio`: log of its probability now
    over that before the step's first update. Losses of tokens that are not scored mean nothing.

    `clip` (PPO, arXiv 1707.06347, eq. 7; with two sides DAPO, arXiv 2503.14476, eq. 8): at a ratio
    of 1.5, an advantage of 1 and high 0.2 the loss is -1.2, without a gradient; at an advantage of
    -1 it is 1.5. `gspo` (arXiv 2507.18071, eq. 5 and 7): the same of the geometric mean of the
    episode's ratios. `cispo` (arXiv 2506.13585, eq. 4): min(ratio, cap), not differentiated, times
    the gradient of log p. `sapo` (arXiv 2511.20347): 4/t sigmoid(t (ratio - 1)), whose slope at a
    ratio of 1 is 1.
    """
    ratio = log_ratio_N_T.exp()
    match objective:
        case PolicyGradient():
            return -ratio * advantages_N_T
        case Clip(low=low, high=high):
            return _clipped(ratio, advantages_N_T, low, high)
        case Gspo(low=low, high=high):
            return _clipped(_mean_over_rows(log_ratio_N_T, is_scored_N_T).exp(), advantages_N_T, low, high)
        case Cispo(cap=cap):
            return -ratio.detach().clamp(max=cap) * advantages_N_T * log_ratio_N_T
        case Sapo(positive=positive, negative=negative):
            temperature = advantages_N_T.new_full(advantages_N_T.shape, negative).masked_fill(
                advantages_N_T > 0, positive
            )
            return -(temperature * (ratio - 1)).sigmoid() * 4 / temperature * advantages_N_T


def expert_losses(logprobs_N_T: Tensor, advantages_N_T: Tensor, *, gamma: float | None) -> Tensor:
    """Loss of tokens that an expert wrote, whose probability there nobody knows: the advantage
    times p / (p + gamma), p being their probability now (LUFFY, arXiv 2504.14945, eq. 7, with the
    expert's taken as 1), differentiated through, so that the gradient of log p is weighed by gamma
    p / (p + gamma)²: most where p is gamma. With no gamma, the advantage times log p: supervised
    learning. At p = 0.1 and gamma 0.1: -1/2 and a weight of 1/4.
    """
    if gamma is None:
        return -advantages_N_T * logprobs_N_T
    p = logprobs_N_T.exp()
    return -advantages_N_T * p / (p + gamma)


def clip_side(log_ratio_N_T: Tensor, advantages_N_T: Tensor, objective: Objective, *, is_scored_N_T: Tensor) -> Tensor:
    """-1 where the objective holds a token's ratio from below, 1 from above, 0 where it does
    not."""
    match objective:
        case Clip(low=low, high=high):
            ratio = log_ratio_N_T.exp()
        case Gspo(low=low, high=high):
            ratio = _mean_over_rows(log_ratio_N_T, is_scored_N_T).exp()
        case Cispo(cap=cap):
            return (log_ratio_N_T.exp() > cap).float()
        case Sapo() | PolicyGradient():
            return log_ratio_N_T.new_zeros(log_ratio_N_T.shape)
    is_low, is_high = (ratio < 1 - low) & (advantages_N_T < 0), (ratio > 1 + high) & (advantages_N_T > 0)
    return is_high.float() - is_low.float()


def _clipped(ratio: Tensor, advantages: Tensor, low: float, high: float) -> Tensor:
    return -(ratio * advantages).minimum(ratio.clamp(1 - low, 1 + high) * advantages)


def _mean_over_rows(log_ratio_N_T: Tensor, is_scored_N_T: Tensor) -> Tensor:
    """Mean over a row's scored tokens, shape (N, 1)."""
    count_N_1 = is_scored_N_T.sum(1, keepdim=True).clamp(min=1)
    return (log_ratio_N_T * is_scored_N_T).sum(1, keepdim=True) / count_N_1
