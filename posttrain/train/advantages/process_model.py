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
from posttrain.train.advantages.baselines import BatchStd, LeaveOneOut, StepRewards, Unscaled, root_mean_square
from posttrain.train.advantages.credit import Credit, StepContext
from posttrain.train.advantages.groups import FloatArray, Group, TurnAdvantages


class ProcessModelCredit(Credit):
    """A turn's advantage is the episode's reward and `weight` times the step rewards from that turn
    on, less what the group expects of both."""

    example: ClassVar[str] = "{weight: 1.0, scale: {type: batch_std, floor: 1.0e-4}}"
    type: Literal["process_model"]
    weight: Annotated[float, Field(ge=0)]
    scale: Annotated[Unscaled | BatchStd, Field(discriminator="type")]

    def turn_advantages(self, groups: Sequence[Group], context: StepContext) -> TurnAdvantages:
        """D - w (V_k - V_1) for the k-th turn: w is the weight, D the reward less the mean of the
        group's other members, and -w V_k the step rewards to come, of which -w V_1 was expected.
        At weight 0 all turns have D. A turn behind which nothing is lost or won any more has about
        0 at weight 1. `batch_std`: over the root mean square of all of the step's turns.

        Expected gradient, unscaled: J's, without a bias whatever the model says and at any weight,
        as V_k does not know what the turn does. What a bad model costs is variance: a turn before
        the flawed one is blamed for it as by the outcome.

        Reward 1 where the others earned 1/2; values 1/2, 1/4, 3/4 before three turns: 1/2, 3/4,
        1/4 at weight 1; 1/2, 5/8, 3/8 at 1/2.
        """
        assert context.values is not None
        found = [self._of_group(*both) for both in zip(groups, context.values, strict=True)]
        numbers = np.concatenate([own for of_group in found if len(of_group) > 1 for own in of_group] or [np.zeros(0)])
        divisor = self.scale.divisor(0.0, root_mean_square(numbers) if len(numbers) > 1 else 0.0)
        return [[own / divisor for own in of_group] for of_group in found]

    def _of_group(self, group: Group, values_G: Sequence[FloatArray]) -> list[FloatArray]:
        rewards_G = group.rewards_G
        if len(rewards_G) < 2:
            return [np.zeros(len(turns)) for turns in group.turns_G]
        others_G = LeaveOneOut(type="leave_one_out").of_group(rewards_G, StepRewards(rewards_G)).expected_G
        outcomes_G = np.zeros(len(rewards_G)) if are_equal(rewards_G) else rewards_G - others_G
        both = zip(outcomes_G.tolist(), values_G, strict=True)
        return [outcome - self.weight * (values_K - values_K[:1]) for outcome, values_K in both]
