"""Advantages that fall with the number of turns that came after."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from posttrain.train.advantages.credit import StepContext
from posttrain.train.advantages.episode import Compared
from posttrain.train.advantages.groups import FloatArray, Group, TurnAdvantages


class DiscountedCredit(Compared):
    """The episode's advantage times `gamma` for each turn that came after."""

    example: ClassVar[str] = (
        "{gamma: 0.9, baseline: {type: group_mean}, scale: {type: group_std, floor: 1.0e-4}, drop: none}"
    )
    type: Literal["discounted"]
    gamma: Annotated[float, Field(gt=0, lt=1)]

    def turn_advantages(self, groups: Sequence[Group], context: StepContext) -> TurnAdvantages:
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
            for of_G, group in zip(self.compared(groups, context.history), groups, strict=True)
        ]


def discounts_K(num_turns: int, gamma: float) -> FloatArray:  # noqa: N802 — a shape is a capital
    """gamma for each turn that came after: 1/4, 1/2, 1."""
    powers: FloatArray = gamma ** np.arange(num_turns - 1, -1, -1, dtype=np.float64)
    return powers
