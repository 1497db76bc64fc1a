"""Advantages from the terms of the reward, each compared by itself and only then added up (GDPO,
arXiv 2601.05242)."""

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from posttrain.evals.groups import are_equal
from posttrain.train.advantages.baselines import deviation
from posttrain.train.advantages.credit import Credit, StepContext
from posttrain.train.advantages.groups import FloatArray, Group


class ScoresCredit(Credit):
    """Each score of the reward is compared within the group by itself, over its own deviation, and
    only then weighed and summed; the sums are normalised over the step (GDPO)."""

    example: ClassVar[str] = "{floor: 1.0e-4}"
    type: Literal["scores"]
    floor: Annotated[float, Field(gt=0, le=1)]

    def episode_advantages(self, groups: Sequence[Group], context: StepContext) -> list[FloatArray]:
        """The sum over scores of weight times (score - mean) / (std + floor) within the group, over
        the deviation of all of the step's sums plus `floor`; the mean of those is 0 as it is. A
        score that is the same for all adds exactly nothing, and so does one that the task does not
        have.

        Expected gradient: not J's, whatever the scores; each counts by its weight and not by how
        far it spreads. In groups of two, each a step of its own, it is 1/sqrt(2) times that of the
        chance to be preferred to another of the policy's episodes less that of not being, the other
        held as it is: scores vote, by weight.

        Scores a 1, 0 and b 1/2, 1 with weights 2 and 1: 2/sqrt(2) - 1/sqrt(2) for the first, over
        the deviation 1 of that and its negative: 1/sqrt(2) and -1/sqrt(2). Raises ValueError where
        a task has none of the scores.
        """
        sums = [self._summed(group, context.score_weights) for group in groups]
        batch = np.concatenate([of_G for of_G in sums if len(of_G) > 1] or [np.zeros(2)])
        return [of_G / (deviation(batch) + self.floor) for of_G in sums]

    def _summed(self, group: Group, weights: Mapping[str, float]) -> FloatArray:
        total: FloatArray = np.zeros(len(group.rewards_G))
        if len(total) < 2:
            return total
        if not weights.keys() & group.scores_G.keys():
            # zeros would look like a group of equal rewards, in silence
            raise ValueError(f"task {group.task_id} has none of the scores {', '.join(weights)}: take another credit")
        for name, weight in weights.items():
            score_G = group.scores_G.get(name)
            if score_G is not None and not are_equal(score_G):
                total += weight * (score_G - score_G.mean()) / (deviation(score_G) + self.floor)
        return total
