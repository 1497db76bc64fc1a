"""Advantages of turns by their discounted return: less for each turn that came after, or against
others of the group that began at the same point (GiGPO, arXiv 2505.10978)."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from posttrain.evals.groups import are_equal
from posttrain.train.advantages.baselines import GroupMean, GroupStd, LeaveOneOut, Unscaled, VirtualBest
from posttrain.train.advantages.credit import Compared, StepContext
from posttrain.train.advantages.groups import FloatArray, Group, TurnAdvantages


class DiscountedCredit(Compared):
    """The episode's advantage times `gamma` for each turn that came after."""

    example: ClassVar[str] = (
        "{gamma: 0.9, baseline: {type: group_mean}, scale: {type: group_std, floor: 1.0e-4}, drop: none}"
    )
    type: Literal["discounted"]
    gamma: Annotated[float, Field(gt=0, lt=1)]

    def turn_advantages(self, groups: Sequence[Group], _context: StepContext) -> TurnAdvantages:
        """gamma^(K-1-k) times the episode's advantage, for the k-th of K turns.

        Expected gradient: not J's, but for each turn that of gamma^(K-1-k) (R - b), b being what
        the reward R is compared with: J under the mean of the others; (G - 1)/G of that under the
        group's; G/(G + 1) of it with b = ((G - 1) J + best)/G under a virtual best. A turn is also
        moved by how many turns it leads to: towards an early end where that earns more than b,
        towards a late one where it earns less. Only with K the same for all does b vanish.

        An advantage of 1 over three turns at gamma 1/2: 1/4, 1/2, 1.
        """
        return [
            [
                discounts_K(len(turns), self.gamma) * advantage
                for advantage, turns in zip(of_G, group.turns_G, strict=True)
            ]
            for of_G, group in zip(self.compared(groups), groups, strict=True)
        ]


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

    def turn_advantages(self, groups: Sequence[Group], _context: StepContext) -> TurnAdvantages:
        """A_episode + weight * A_state (eq. 8). A_state compares a turn's return, gamma^(K-1-k)
        times the reward, with those of the group's turns that have its `state` (eq. 7), by
        `state_baseline` and over `scale`. A state that nobody else saw has 0; under a virtual best
        it is compared with that. Over `group_std` a virtual best makes equal returns of n turns
        -1/sqrt(n + 1), whatever they are: -0.707 of a state that was seen once.

        Expected gradient: unscaled, the share of J's that the baseline's docstring says, and
        `weight` times for each turn that of its return times a share of its own, where no episode
        has one state twice. With n others at that point it is n/(n + 1) under the mean, 1 under the
        mean of the others (0 for n = 0), (n + 1)/(n + 2) under a virtual best: points that all pass
        count for more, and short ways for more than long ones.

        Rewards 1, 0, 0 after two turns each, from states a, b and a, b and a, c, gamma 1/2,
        unscaled, by means: A_state 1/2 - 1/6, -1/6, -1/6 of the first turns, 1/2, -1/2, 0 of the
        second.
        """
        return [
            [
                advantage + self.weight * of_turns
                for advantage, of_turns in zip(of_G, self._of_states(group), strict=True)
            ]
            for of_G, group in zip(self.compared(groups), groups, strict=True)
        ]

    def _of_states(self, group: Group) -> list[FloatArray]:
        if len(group.rewards_G) < 2 or self.is_dropped(group):
            return [np.zeros(len(turns)) for turns in group.turns_G]
        num_turns_G = [len(turns) for turns in group.turns_G]
        returns = np.concatenate(
            [discounts_K(num, self.gamma) * reward for num, reward in zip(num_turns_G, group.rewards_G, strict=True)]
        )
        names = np.array([turn.state for turns in group.turns_G for turn in turns])
        found = np.zeros(len(returns))
        for name in np.unique(names):
            found[names == name] = self._of_state(returns[names == name])
        return np.split(found, np.cumsum(num_turns_G)[:-1])  # flat over the group, cut into its members

    def _of_state(self, returns: FloatArray) -> FloatArray:
        if self.state_baseline.is_own_mean and (len(returns) < 2 or are_equal(returns)):
            return np.zeros(len(returns))
        found = self.state_baseline.of_group(returns, returns)
        return (returns - found.expected_G) / self.scale.divisor(found.deviation, 0.0)


def discounts_K(num_turns: int, gamma: float) -> FloatArray:  # noqa: N802 — a shape is a capital
    """gamma for each turn that came after: 1/4, 1/2, 1."""
    powers: FloatArray = gamma ** np.arange(num_turns - 1, -1, -1, dtype=np.float64)
    return powers
