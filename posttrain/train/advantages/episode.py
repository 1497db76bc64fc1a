"""One advantage for each episode: its reward less a baseline, over a scale (GRPO, RLOO, NGRPO …).

Groups may differ in size: a lost episode is no member of its group. A group of equal rewards gives
exact zeros, unless its baseline lies elsewhere.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np

from posttrain.evals.groups import are_equal
from posttrain.train.advantages.baselines import BaselineParams, StepRewards, VirtualBest
from posttrain.train.advantages.credit import Credit, StepContext
from posttrain.train.advantages.equal_groups import ByBaseline, ByCoin, ByEntropy, EqualGroups
from posttrain.train.advantages.groups import FloatArray, Group, TokenAdvantages
from posttrain.train.advantages.history import TaskHistory
from posttrain.train.advantages.scales import ScaleParams, scaled


class Compared(Credit):
    """(reward - baseline) / scale. `drop`: groups that count for nothing, `equal` those whose
    rewards are, `all_good` those in which all succeeded."""

    baseline: BaselineParams
    scale: ScaleParams
    drop: Literal["none", "equal", "all_good"]

    def compared(self, groups: Sequence[Group], history: TaskHistory) -> list[FloatArray]:
        """For each group an array of shape (G,); zeros where it has fewer than two members and
        where it is dropped.

        Expected gradient: unscaled, what the baseline's docstring says; scaled, that of another
        objective (`scales.py`); with groups dropped by what they earned, that of those kept.

        Rewards 1, 0, 0, 0 under the group's mean: 3/4, -1/4, -1/4, -1/4; over the standard
        deviation 1/2: twice that. Raises ValueError, with the task, for a reward that is not
        finite, or above a virtual best one: what is better than the best would be pushed down.
        """
        for group in groups:
            self._refuse(group)
        batch = np.concatenate([group.rewards_G for group in groups if len(group.rewards_G) > 1] or [np.zeros(0)])
        return [self._of_group(group, StepRewards(batch, history.mean(group.task_id))) for group in groups]

    def is_dropped(self, group: Group) -> bool:
        """True for a group that `drop` leaves out."""
        match self.drop:
            case "none":
                return False
            case "equal":
                return are_equal(group.rewards_G)
            case "all_good":
                return bool(group.successes_G.all())

    def _of_group(self, group: Group, step: StepRewards) -> FloatArray:
        nothing: FloatArray = np.zeros(len(group.rewards_G))
        if len(group.rewards_G) < 2 or self.is_dropped(group):
            return nothing
        if are_equal(group.rewards_G) and self.baseline.is_own_mean:
            return nothing  # exactly: rewards that differ by rounding would be blown up by their deviation
        found = self.baseline.of_group(group.rewards_G, step)
        differences: FloatArray = group.rewards_G - found.expected_G
        return scaled(differences, self.scale, compared=found.compared, batch=step.batch)

    def _refuse(self, group: Group) -> None:
        if not np.isfinite(group.rewards_G).all():
            raise ValueError(
                f"a reward of task {group.task_id} is {group.rewards_G[~np.isfinite(group.rewards_G)][0]}; "
                "a score divided by zero or overflowed"
            )
        best = self.baseline.best if isinstance(self.baseline, VirtualBest) else np.inf
        if (most := group.rewards_G.max(initial=-np.inf)) > best:
            raise ValueError(
                f"an episode of task {group.task_id} earned {most:g}, more than the virtual best of {best:g}: raise "
                "train_policy.algorithm.credit.baseline.best to the most that can be earned"
            )


class EpisodeCredit(Compared):
    """One number for all tokens of an episode: (reward - baseline) / scale. `drop`: groups that
    count for nothing, `equal` those whose rewards are, `all_good` those in which all succeeded."""

    example: ClassVar[str] = (
        "{baseline: {type: group_mean}, scale: {type: group_std, floor: 1.0e-4}, drop: none, "
        "equal_groups: {type: by_baseline}}"
    )
    type: Literal["episode"]
    equal_groups: EqualGroups

    def episode_advantages(self, groups: Sequence[Group], context: StepContext) -> list[FloatArray]:
        return self.compared(groups, context.history)

    def token_advantages(self, groups: Sequence[Group], context: StepContext) -> TokenAdvantages:
        return [
            self._of_equal(index, group, of_group, context)
            if len(group.rewards_G) > 1 and are_equal(group.rewards_G) and not self.is_dropped(group)
            else of_group
            for index, (group, of_group) in enumerate(
                zip(groups, super().token_advantages(groups, context), strict=True)
            )
        ]

    def _of_equal(
        self, index: int, group: Group, by_baseline: list[FloatArray], context: StepContext
    ) -> list[FloatArray]:
        match self.equal_groups:
            case ByBaseline():
                return by_baseline
            case ByCoin() as coin:
                given = coin.advantage(seed=context.seed, step=context.step, index=index)
                return [np.full(len(of_tokens), given) for of_tokens in by_baseline]
            case ByEntropy() as by_entropy:
                return by_entropy.advantages(group, [] if context.entropies is None else context.entropies[index])
