"""Advantages from how well a turn's own calls did, besides the episode's: of the turns up to the
first tool result (MT-GRPO, arXiv 2505.11821), or of every one with its own score."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from posttrain.train.advantages.baselines import BatchMean, GroupMean, LeaveOneOut, VirtualBest
from posttrain.train.advantages.credit import Compared, StepContext
from posttrain.train.advantages.groups import FloatArray, Group, Turn, TurnAdvantages


class TurnScoresCredit(Compared):
    """The episode's advantage plus, for turns, `weight` times how well they did themselves,
    compared within the group in the same way: the world's score of a turn, or the share of its
    calls that worked. `first`: those before the first result, with its score (MT-GRPO); `every`:
    each with its own, compared with all of the group's."""

    example: ClassVar[str] = (
        "{turns: first, weight: 1.0, baseline: {type: group_mean}, scale: {type: group_std, floor: 1.0e-4}, drop: none}"
    )
    type: Literal["turn_scores"]
    turns: Literal["first", "every"]
    weight: Annotated[float, Field(gt=0)]
    baseline: Annotated[GroupMean | LeaveOneOut | VirtualBest | BatchMean, Field(discriminator="type")]

    def turn_advantages(self, groups: Sequence[Group], _context: StepContext) -> TurnAdvantages:
        outcomes = self.compared(groups)
        of_turns = self._first if self.turns == "first" else self._every
        return of_turns(groups, outcomes)

    def _first(self, groups: Sequence[Group], outcomes: Sequence[FloatArray]) -> TurnAdvantages:
        """A_outcome + weight * A_turn for the turns up to and with the first that has a score,
        whose call brings the first result; A_outcome for those after it. A_outcome compares
        rewards, A_turn that first score, in the same way; a score's virtual best is 1.

        An episode without a score called nothing. As released (`_assign_advantages`), its turns get
        what a combined reward gives, compared by itself; ours is reward + weight * score with a
        score of 0 (released without the weight). It counts as 0 in A_turn too.

        Expected gradient: unscaled, the share that the baseline's docstring says, of J + weight *
        E[score]. There is no bias from the choice of when to stop: whether the first call is still
        to come was settled before the turn. Compared only with those that called, it would have
        one, -weight * E[score | called] times the gradient of P(called) (verl #7244).

        Rewards 1, 0, first scores 1/2 and none, unscaled, weight 1: 1/2 + 1/4 up to the call and
        1/2 after it, -1/2 - 1/4 for all of the other.
        """

        def combined(of_reward: float, of_score: float) -> list[FloatArray]:
            changed = [
                replace(one, rewards_G=of_reward * one.rewards_G + of_score * _first_scores(one)) for one in groups
            ]
            return self._compared_alone(groups, changed, of_reward=of_reward, of_score=of_score)

        firsts, both = combined(0.0, 1.0), combined(1.0, self.weight)
        return [
            [
                _of_member(turns, outcome, self.weight * first, together)
                for turns, outcome, first, together in zip(group.turns_G, *of_group, strict=True)
            ]
            for group, *of_group in zip(groups, outcomes, firsts, both, strict=True)
        ]

    def _every(self, groups: Sequence[Group], outcomes: Sequence[FloatArray]) -> TurnAdvantages:
        """A_outcome for each turn, and weight * A_turn for one that has a score, compared with all
        scores of the group's turns.

        Expected gradient: besides the outcome's, the sum over turns of weight * E[(score - mean)
        times that of log p(turn)]: of no objective. A turn is judged by itself, not by what it
        leads to: below the mean it is pushed down though it was needed.

        Rewards 1, 0, scores 1 and 1/4 of the first's two turns and 1/4 of the other's, unscaled,
        weight 1: 1/2 + 1/2 and 1/2 - 1/4, and -1/2 - 1/4.
        """
        pools = [
            # all scores of a group's turns as if each were a member of one group
            replace(group, rewards_G=scores, successes_G=np.zeros(len(scores), dtype=np.bool_))
            for group in groups
            for scores in [np.array(_scores(group), dtype=np.float64)]
        ]
        found = self._compared_alone(groups, pools, of_reward=0.0, of_score=1.0)
        compared = [
            iter(one.tolist() if len(group.rewards_G) > 1 else [0.0] * len(one))
            for group, one in zip(groups, found, strict=True)
        ]
        return [
            [
                np.array([outcome + (0.0 if turn.score is None else self.weight * next(left)) for turn in turns])
                for turns, outcome in zip(group.turns_G, of_group.tolist(), strict=True)
            ]
            for group, of_group, left in zip(groups, outcomes, compared, strict=True)
        ]

    def _compared_alone(
        self,
        groups: Sequence[Group],
        changed: Sequence[Group],
        *,
        of_reward: float,
        of_score: float,
    ) -> list[FloatArray]:
        """`changed` have `of_reward` times the reward plus `of_score` times a score for a
        reward. Zeros for a group that is dropped by what it earned."""
        baseline = self.baseline
        if isinstance(baseline, VirtualBest):
            # the most that can be earned, in the same combination as the rewards
            baseline = baseline.model_copy(update={"best": of_reward * baseline.best + of_score})
        found = self.model_copy(update={"baseline": baseline, "drop": "none"}).compared(changed)
        return [
            np.zeros_like(of_group) if self.is_dropped(group) else of_group
            for group, of_group in zip(groups, found, strict=True)
        ]


def first_call(turns: Sequence[Turn]) -> int | None:
    """Place of the first turn with a score."""
    return next((place for place, turn in enumerate(turns) if turn.score is not None), None)


def _of_member(turns: Sequence[Turn], outcome: float, first: float, together: float) -> FloatArray:
    """`together` where nothing was called."""
    called = first_call(turns)
    if called is None:
        return np.full(len(turns), together)
    by_turn: FloatArray = np.where(np.arange(len(turns)) <= called, outcome + first, outcome)
    return by_turn


def _first_scores(group: Group) -> FloatArray:
    """Shape (G,), 0 where nothing was called."""
    found = [next((turn.score for turn in turns if turn.score is not None), 0.0) for turns in group.turns_G]
    return np.array(found, dtype=np.float64)


def _scores(group: Group) -> list[float]:
    return [turn.score for turns in group.turns_G for turn in turns if turn.score is not None]
