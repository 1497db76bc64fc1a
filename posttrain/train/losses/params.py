"""The knobs of the loss: how far the policy may go from the one that played, and from the one that
training began from."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from posttrain.runtime.knobs import Section, SmallCount


class Clip(Section):
    """The likelihood ratio to the policy that played, kept within 1 - `low` and 1 + `high` where
    that would make the step larger (PPO, DAPO's clip-higher)."""

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
    """As clip, with one ratio for an episode: the geometric mean of its tokens' (GSPO)."""

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


Objective = Clip | Cispo | Gspo | Sapo | PolicyGradient

LossMean = Literal["tokens", "episodes", "max_tokens"]


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
