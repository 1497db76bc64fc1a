"""One advantage for each episode: its reward less what was to be expected, over a scale.

Groups may differ in size: a lost episode is no member of its group. A group of equal rewards gives
exact zeros, unless its baseline lies elsewhere.
"""

from collections.abc import Sequence

import numpy as np

from posttrain.evals.groups import are_equal
from posttrain.train.advantages import baselines
from posttrain.train.advantages.baselines import Baseline
from posttrain.train.advantages.groups import FloatArray, Group
from posttrain.train.advantages.history import TaskHistory
from posttrain.train.advantages.params import (
    BaselineParams,
    BatchMean,
    Compared,
    GroupMean,
    LeaveOneOut,
    Nothing,
    TaskMean,
    VirtualBest,
    VirtualEnds,
    Weighted,
)
from posttrain.train.advantages.scales import scaled

_OWN = (GroupMean, LeaveOneOut)  # baselines that are the reward itself where all are equal


def episode_advantages(groups: Sequence[Group], credit: Compared, history: TaskHistory) -> list[FloatArray]:
    """An array for each group, shape (G,); zeros where fewer than two members are left, and where
    the group is dropped. `history` is read, not written.

    Expected gradient: unscaled, what the baseline's docstring says; scaled, that of another
    objective (`scales.py`); with groups dropped by what they earned, that of those that were kept.

    Rewards 1, 0, 0, 0 under the group's mean: 3/4, -1/4, -1/4, -1/4; over the standard deviation
    1/2: twice that. Raises ValueError, with the task, for a reward that is not finite, or above a
    virtual best one: what is better than the best would be pushed down.
    """
    for group in groups:
        _refuse(group, credit)
    compared = [group for group in groups if len(group.rewards_G) > 1]
    batch = np.concatenate([group.rewards_G for group in compared] or [np.zeros(0)])
    return [_of_group(group, credit, history, batch) for group in groups]


def _of_group(group: Group, credit: Compared, history: TaskHistory, batch: FloatArray) -> FloatArray:
    nothing: FloatArray = np.zeros(len(group.rewards_G))
    if len(group.rewards_G) < 2 or is_dropped(group, credit):
        return nothing
    if are_equal(group.rewards_G) and isinstance(credit.baseline, _OWN):
        return nothing
    found = _baseline(group, credit.baseline, history, batch)
    differences: FloatArray = group.rewards_G - found.expected_G
    return scaled(differences, credit.scale, compared=found.compared, batch=batch)


def is_dropped(group: Group, credit: Compared) -> bool:
    """Whether a group counts for nothing by `credit.drop`."""
    match credit.drop:
        case "none":
            return False
        case "equal":
            return are_equal(group.rewards_G)
        case "all_good":
            return bool(group.successes_G.all())


def _baseline(group: Group, params: BaselineParams, history: TaskHistory, batch: FloatArray) -> Baseline:
    rewards_G, known = group.rewards_G, history.mean(group.task_id)
    match params:
        case Nothing():
            return baselines.nothing(rewards_G)
        case GroupMean():
            return baselines.group_mean(rewards_G)
        case LeaveOneOut():
            return baselines.leave_one_out(rewards_G)
        case VirtualBest(best=best):
            return baselines.virtual_best(rewards_G, best=best)
        case VirtualEnds(worst=worst, best=best):
            return baselines.virtual_ends(rewards_G, worst=worst, best=best)
        case TaskMean():
            return baselines.group_mean(rewards_G) if known is None else baselines.known(rewards_G, known)
        case BatchMean():
            return baselines.batch_mean(rewards_G, batch=batch)
        case Weighted(batch_count=batch_count):
            return baselines.weighted(
                rewards_G,
                batch=batch,
                task_mean=known or 0.0,
                task_count=history.count(group.task_id),
                batch_count=batch_count,
            )


def _refuse(group: Group, credit: Compared) -> None:
    if not np.isfinite(group.rewards_G).all():
        raise ValueError(
            f"a reward of task {group.task_id} is {group.rewards_G[~np.isfinite(group.rewards_G)][0]}; "
            "a score divided by zero or overflowed"
        )
    best = credit.baseline.best if isinstance(credit.baseline, VirtualBest | VirtualEnds) else np.inf
    if (most := group.rewards_G.max(initial=-np.inf)) > best:
        raise ValueError(
            f"an episode of task {group.task_id} earned {most:g}, more than the virtual best of {best:g}: raise "
            "train_policy.algorithm.credit.baseline.best to the most that can be earned"
        )
