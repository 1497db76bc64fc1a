"""Credits a turn with how it compares with what others of the group did at the same point, besides
what the whole episode earned (GiGPO, arXiv 2505.10978)."""

from collections.abc import Sequence

import numpy as np

from posttrain.evals.groups import are_equal
from posttrain.train.advantages import baselines
from posttrain.train.advantages.baselines import Baseline
from posttrain.train.advantages.discounted import discounts_K
from posttrain.train.advantages.episode import episode_advantages, is_dropped
from posttrain.train.advantages.groups import FloatArray, Group, TurnCredit
from posttrain.train.advantages.history import TaskHistory
from posttrain.train.advantages.params import LeaveOneOut, StatesCredit, VirtualBest
from posttrain.train.advantages.scales import scaled


def states(groups: Sequence[Group], credit: StatesCredit, history: TaskHistory) -> TurnCredit:
    """A_episode + weight * A_state (eq. 8). A_state compares a turn's return, gamma^(K-1-k) times
    the reward, with those of the turns of any member of the group that have its `state` (eq. 7),
    by `state_baseline` and over `scale`. What nobody else saw has nothing to be compared with, and
    0; under a virtual best it is compared with that. Over `group_std` a virtual best makes equal
    returns of n turns -1/sqrt(n + 1), whatever they are: -0.707 of a state that was seen once.

    Expected gradient: unscaled, the share of J's that the baseline's docstring says, and `weight`
    times for each turn that of its return times a share of its own, where no episode has one state
    twice. With n others at that point the share is n/(n + 1) under the mean, 1 under the mean of
    the others (0 for n = 0), (n + 1)/(n + 2) under a virtual best: points that all pass count for
    more than those that few reach, and short ways for more than long ones.

    Rewards 1, 0, 0 after two turns each, from states a, b and a, b and a, c, gamma 1/2, unscaled,
    by means: A_state 1/2 - 1/6, -1/6, -1/6 of the first turns, 1/2, -1/2, 0 of the second. Raises
    ValueError, with the task, where a return lies above a virtual best one.
    """
    found = episode_advantages(groups, credit, history)
    return [
        [
            advantage + credit.weight * of_turns
            for advantage, of_turns in zip(of_G, _of_states(group, credit), strict=True)
        ]
        for of_G, group in zip(found, groups, strict=True)
    ]


def _of_states(group: Group, credit: StatesCredit) -> list[FloatArray]:
    """Of each member, a number for each of its turns."""
    nothing = [np.zeros(len(turns)) for turns in group.turns_G]
    if len(group.rewards_G) < 2 or is_dropped(group, credit):
        return nothing
    num_turns_G = [len(turns) for turns in group.turns_G]
    returns = np.concatenate(
        [discounts_K(num, credit.gamma) * reward for num, reward in zip(num_turns_G, group.rewards_G, strict=True)]
    )
    _refuse(group, returns, credit)
    names = np.array([turn.state for turns in group.turns_G for turn in turns])
    found = np.zeros(len(returns))
    for name in np.unique(names):
        found[names == name] = _of_state(returns[names == name], credit)
    return np.split(found, np.cumsum(num_turns_G)[:-1])


def _of_state(returns: FloatArray, credit: StatesCredit) -> FloatArray:
    has_own_baseline = not isinstance(credit.state_baseline, VirtualBest)
    if has_own_baseline and (len(returns) < 2 or are_equal(returns)):
        return np.zeros(len(returns))
    found = _baseline(returns, credit)
    return scaled(returns - found.expected_G, credit.scale, compared=found.compared, batch=returns)


def _baseline(returns: FloatArray, credit: StatesCredit) -> Baseline:
    match credit.state_baseline:
        case VirtualBest(best=best):
            return baselines.virtual_best(returns, best=best)
        case LeaveOneOut():
            return baselines.leave_one_out(returns)
        case _:
            return baselines.group_mean(returns)


def _refuse(group: Group, returns: FloatArray, credit: StatesCredit) -> None:
    best = credit.state_baseline.best if isinstance(credit.state_baseline, VirtualBest) else np.inf
    if (most := returns.max(initial=-np.inf)) > best:
        raise ValueError(
            f"a turn of task {group.task_id} has a return of {most:g}, more than the virtual best of {best:g}: raise "
            "train_policy.algorithm.credit.state_baseline.best to the most that can be earned"
        )
