"""Advantages of turns by the step rewards of a process reward model, besides the outcome.

A turn's step reward is F_k = V_k+1 - V_k, V_k being the model's value before it and 0 behind the
last turn: shaping by a potential (Ng et al., ICML 1999). An episode's sum up to -V_1, which all of
its task's have in common: no length is paid, and the optimum stays where it is.
"""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from posttrain.evals.groups import are_equal
from posttrain.train.advantages.credit import ByValues
from posttrain.train.advantages.groups import FloatArray


class ProcessModelCredit(ByValues):
    """A turn's advantage is the episode's reward and `weight` times the step rewards from that turn
    on, less what the group expects of both."""

    example: ClassVar[str] = "{weight: 1.0, scale: {type: batch_std, floor: 1.0e-4}}"
    type: Literal["process_model"]
    weight: Annotated[float, Field(ge=0)]

    def of_group(self, rewards_G: FloatArray, others_G: FloatArray, values_G: Sequence[FloatArray]) -> list[FloatArray]:
        """D - w (V_k - V_1) for the k-th turn: w is the weight, D the reward less the mean of the
        group's other members, and -w V_k the step rewards to come, of which -w V_1 was expected.
        At weight 0 all turns have D. A turn behind which nothing is lost or won any more has about
        0 at weight 1.

        Expected gradient, unscaled: J's, without a bias whatever the model says and at any weight,
        as V_k does not know what the turn does. What a bad model costs is variance: a turn before
        the flawed one is blamed for it as by the outcome.

        Reward 1 where the others earned 1/2; values 1/2, 1/4, 3/4 before three turns: 1/2, 3/4,
        1/4 at weight 1; 1/2, 5/8, 3/8 at 1/2.
        """
        outcomes_G = np.zeros(len(rewards_G)) if are_equal(rewards_G) else rewards_G - others_G
        both = zip(outcomes_G.tolist(), values_G, strict=True)
        return [outcome - self.weight * (values_K - values_K[:1]) for outcome, values_K in both]
