"""Advantages of turns by what playing on from them earns: values are means of branches, whole
episodes that the policy itself plays from the beginning of a turn (VinePPO, arXiv 2410.01679; the
Monte-Carlo labels of Math-Shepherd, arXiv 2312.08935). No critic is learnt.

An advantage is the value behind less the value before. So an episode's sum up to its reward less
what the task was expected to earn, whatever the number of its turns: no length is paid. A group of
equal rewards has advantages, too: two turns may have lost and won what neither shows at the end.
"""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from posttrain.evals.groups import are_equal
from posttrain.runtime.knobs import Count, Section, SmallCount
from posttrain.train.advantages.credit import ByValues
from posttrain.train.advantages.groups import FloatArray, Group, TokenAdvantages, Turn

BranchPoints = list[list[list[int]]]  # per group, per member: the turns, from 0, that branches begin with


class EveryTurn(Section):
    """Branches at every turn but an episode's first."""

    needs_entropies: ClassVar[bool] = False
    type: Literal["turns"]

    def points(self, groups: Sequence[Group], _entropies: TokenAdvantages | None) -> BranchPoints:
        return [[list(range(1, len(turns))) for turns in group.turns_G] for group in groups]


class UncertainTurns(Section):
    """Branches at about `share` of the step's turns but first ones: those whose first `tokens`
    tokens have the highest mean entropy (ARPO, arXiv 2507.19849, which draws them)."""

    example: ClassVar[str] = "{share: 0.5, tokens: 8}"
    needs_entropies: ClassVar[bool] = True
    type: Literal["entropy"]
    share: Annotated[float, Field(gt=0, lt=1)]
    tokens: Count

    def points(self, groups: Sequence[Group], entropies: TokenAdvantages | None) -> BranchPoints:
        """A turn is a point where fewer than `share` of the turns of the step's *other* episodes
        are more uncertain: whether it is one must not depend on what the episode does next."""
        assert entropies is not None
        means = [
            [self._later(turns, own) for turns, own in zip(group.turns_G, of_group, strict=True)]
            for group, of_group in zip(groups, entropies, strict=True)
        ]
        every = np.sort(np.concatenate([own for of_group in means for own in of_group] or [np.zeros(0)]))
        return [[(1 + np.flatnonzero(self._is_point(own, every))).tolist() for own in of_group] for of_group in means]

    def _later(self, turns: Sequence[Turn], entropies: FloatArray) -> FloatArray:
        """Mean entropy of each turn's first tokens, without the first turn."""
        starts = np.cumsum([0, *(turn.num_tokens for turn in turns)])[1:-1]
        means = [
            entropies[start:][: min(self.tokens, turn.num_tokens)].mean()
            for start, turn in zip(starts, turns[1:], strict=True)
        ]
        return np.array(means, dtype=np.float64)

    def _is_point(self, own: FloatArray, every: FloatArray) -> FloatArray:
        num_above = len(every) - np.searchsorted(every, own, side="right") - (own > own[:, None]).sum(1)
        num_others = len(every) - len(own)
        found: FloatArray = (num_above < self.share * num_others) | (num_others == 0)
        return found


class BranchValueCredit(ByValues):
    """A turn's advantage is by how much it changes the mean reward of playing on: of `branches`
    plays by the same weights from the beginning of each turn, or of the most uncertain ones. The
    branches are not trained on, and the tokens that they write count as generated."""

    example: ClassVar[str] = "{branches: 4, at: {type: turns}, scale: {type: none}}"
    type: Literal["branch_values"]
    branches: SmallCount
    at: Annotated[EveryTurn | UncertainTurns, Field(discriminator="type")]

    def points(self, groups: Sequence[Group], entropies: TokenAdvantages | None) -> BranchPoints:
        """Turns that branches begin with; none in a group of fewer than two."""
        found = self.at.points(groups, entropies)
        return [of_group if len(of_group) > 1 else [[] for _ in of_group] for of_group in found]

    def of_group(self, rewards_G: FloatArray, others_G: FloatArray, values_G: Sequence[FloatArray]) -> list[FloatArray]:
        """V_k+1 - V_k for the k-th of K turns. V_k is the mean reward of the branches at turn k,
        V_K+1 the episode's own, V_1 the mean of the group's other members: an episode of one turn
        has RLOO's advantage. Turns between two points share one difference, as one action.

        Expected gradient, unscaled: J's, however few the branches are. V_k+1 is expected to be what
        the turn leads to, and V_k does not know what the turn does. Under the mean of the whole
        group, V_1 would: the first turns' part would be (G - 1)/G of J's, and the others' all of
        it. It stays J's where a point's branches were lost by no doing of the turn's, and under
        `entropy` with one token. With more, the later ones know what the turn began with, and the
        gradient is off by how much they move the choice.

        Rewards 1 and 0; three turns of the first with values 1/4 and 3/4 before the second and the
        third: 1/4 - 0, 3/4 - 1/4, 1 - 3/4. Without the first of these values: 3/4, 3/4, 1/4.
        """
        both = zip(values_G, others_G.tolist(), rewards_G.tolist(), strict=True)
        return [differences(values_K, first, reward) for values_K, first, reward in both]


def differences(values_K: FloatArray, first: float, reward: float) -> FloatArray:
    """The value behind each turn less the one before it, (K,). `values_K`: before each turn, NaN
    where there is none; `first` stands before the first turn. A difference that is rounding alone
    is exactly 0."""
    if not len(values_K):
        return np.zeros(0)
    starts = np.union1d([0], np.flatnonzero(np.isfinite(values_K)))
    values = np.concatenate([[first], values_K[starts[1:]], [reward]])
    gaps = [
        0.0 if are_equal(values[place : place + 2]) else values[place + 1] - values[place]
        for place in range(len(starts))
    ]
    return np.repeat(gaps, np.diff([*starts, len(values_K)]))
