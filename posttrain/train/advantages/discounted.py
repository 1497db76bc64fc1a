"""Credits the turns of an episode the less, the more turns came after them."""

from collections.abc import Sequence

import numpy as np

from posttrain.train.advantages.episode import episode_advantages
from posttrain.train.advantages.groups import FloatArray, Group, TurnCredit
from posttrain.train.advantages.history import TaskHistory
from posttrain.train.advantages.params import DiscountedCredit


def discounted(groups: Sequence[Group], credit: DiscountedCredit, history: TaskHistory) -> TurnCredit:
    """gamma^(K-1-k) times the episode's advantage, for the k-th of K turns.

    Expected gradient: not J's, but for each turn that of gamma^(K-1-k) (R - b), b being what the
    reward R is compared with: J under the mean of the others; (G - 1)/G of that under the group's;
    G/(G + 1) of it with b = ((G - 1) J + best)/G under a virtual best. A turn is also moved by how
    many turns it leads to: towards an early end where that earns more than b, towards a late one
    where it earns less. Only with K the same for all does b vanish.

    An advantage of 1 over three turns at gamma 1/2: 1/4, 1/2, 1.
    """
    found = episode_advantages(groups, credit, history)
    return [
        [
            discounts_K(len(turns), credit.gamma) * advantage
            for advantage, turns in zip(of_G, group.turns_G, strict=True)
        ]
        for of_G, group in zip(found, groups, strict=True)
    ]


def discounts_K(num_turns: int, gamma: float) -> FloatArray:  # noqa: N802 — a shape is a capital
    """gamma for each turn that came after: 1/4, 1/2, 1."""
    powers: FloatArray = gamma ** np.arange(num_turns - 1, -1, -1, dtype=np.float64)
    return powers
