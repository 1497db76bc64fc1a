"""Advantages of turns against others of the group that began at the same point, besides the
episode's (GiGPO, arXiv 2505.10978)."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from posttrain.evals.groups import are_equal
from posttrain.train.advantages.baselines import GroupMean, LeaveOneOut, StepRewards, VirtualBest
from posttrain.train.advantages.credit import StepContext
from posttrain.train.advantages.discounted import discounts_K
from posttrain.train.advantages.episode import Compared
from posttrain.train.advantages.groups import FloatArray, Group, TurnAdvantages
from posttrain.train.advantages.scales import GroupStd, Unscaled, scaled


class StatesCredit(Compared):
    """The episode's advantage plus, for every turn, `weight` times how its discounted return
    compares with those of the group's other turns that began from the same state (GiGPO):
    `state_baseline` may be one with a virtual best."""

    example: ClassVar[str] = (
        "{gamma: 0.95, weight: 1.0, state_baseline: {type: group_mean}, baseline: {type: group_mean}, "
        "scale: {type: none}, drop: none}"
    )
    type: Literal["states"]
    gamma: Annotated[float, Field(gt=0, le=1)]
    weight: Annotated[float, Field(gt=0)]
    scale: Annotated[Unscaled | GroupStd, Field(discriminator="type")]  # a whole step's turns are of no one state
    state_baseline: Annotated[GroupMean | LeaveOneOut | VirtualBest, Field(discriminator="type")]

    def turn_advantages(self, groups: Sequence[Group], context: StepContext) -> TurnAdvantages:
        """A_episode + weight * A_state (eq. 8). A_state compares a turn's return, gamma^(K-1-k)
        times the reward, with those of the turns of any member of the group that have its `state`
        (eq. 7), by `state_baseline` and over `scale`. A state that nobody else saw has nothing to
        be compared with, and 0; under a virtual best it is compared with that. Over `group_std` a
        virtual best makes equal returns of n turns -1/sqrt(n + 1), whatever they are: -0.707 of a
        state that was seen once.

        Expected gradient: unscaled, the share of J's that the baseline's docstring says, and
        `weight` times for each turn that of its return times a share of its own, where no episode
        has one state twice. With n others at that point the share is n/(n + 1) under the mean, 1
        under the mean of the others (0 for n = 0), (n + 1)/(n + 2) under a virtual best: points
        that all pass count for more than those that few reach, and short ways for more than long
        ones.

        Rewards 1, 0, 0 after two turns each, from states a, b and a, b and a, c, gamma 1/2,
        unscaled, by means: A_state 1/2 - 1/6, -1/6, -1/6 of the first turns, 1/2, -1/2, 0 of the
        second. Raises ValueError, with the task, where a return lies above a virtual best one.
        """
        return [
            [
                advantage + self.weight * of_turns
                for advantage, of_turns in zip(of_G, self._of_states(group), strict=True)
            ]
            for of_G, group in zip(self.compared(groups, context.history), groups, strict=True)
        ]

    def _of_states(self, group: Group) -> list[FloatArray]:
        """For each member, a number for each of its turns."""
        if len(group.rewards_G) < 2 or self.is_dropped(group):
            return [np.zeros(len(turns)) for turns in group.turns_G]
        num_turns_G = [len(turns) for turns in group.turns_G]
        returns = np.concatenate(
            [discounts_K(num, self.gamma) * reward for num, reward in zip(num_turns_G, group.rewards_G, strict=True)]
        )
        self._refuse_returns(group, returns)
        names = np.array([turn.state for turns in group.turns_G for turn in turns])
        found = np.zeros(len(returns))
        for name in np.unique(names):
            found[names == name] = self._of_state(returns[names == name])
        return np.split(found, np.cumsum(num_turns_G)[:-1])

    def _of_state(self, returns: FloatArray) -> FloatArray:
        if self.state_baseline.is_own_mean and (len(returns) < 2 or are_equal(returns)):
            return np.zeros(len(returns))
        found = self.state_baseline.of_group(returns, StepRewards(returns))
        return scaled(returns - found.expected_G, self.scale, compared=found.compared, batch=returns)

    def _refuse_returns(self, group: Group, returns: FloatArray) -> None:
        best = self.state_baseline.best if isinstance(self.state_baseline, VirtualBest) else np.inf
        if (most := returns.max(initial=-np.inf)) > best:
            raise ValueError(
                f"a turn of task {group.task_id} has a return of {most:g}, more than the virtual best of {best:g}: "
                "raise train_policy.algorithm.credit.state_baseline.best to the most that can be earned"
            )
