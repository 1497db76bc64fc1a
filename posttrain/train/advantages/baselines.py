"""What an episode could be expected to earn: the number that its reward is compared with.

Each function gives the baseline of every member of one group, and the rewards that a standard
deviation is taken of. Its docstring says what the expected gradient of the policy is then, where
nothing is divided by: J is the expected reward, and a baseline that does not depend on the
episode's own actions changes nothing (Williams 1992). What it contains of the episode's own reward
shortens the gradient by that share.
"""

from dataclasses import dataclass

import numpy as np

from posttrain.evals.groups import are_equal
from posttrain.train.advantages.groups import FloatArray


@dataclass(frozen=True, slots=True)
class Baseline:
    """`expected_G`: of each member. `compared`: the rewards that its spread is measured among."""

    expected_G: FloatArray
    compared: FloatArray


def nothing(rewards_G: FloatArray) -> Baseline:
    """0 (REINFORCE). Gradient: J's. Of rewards of 0 and 1 this is learning from successes alone
    (RAFT, arXiv 2304.06767, without a ranking): failures push nothing down. Rewards 1, 0, 0, 0: 0
    for each."""
    return Baseline(np.zeros(len(rewards_G)), rewards_G)


def group_mean(rewards_G: FloatArray) -> Baseline:
    """The mean of the group (GRPO, arXiv 2402.03300). Gradient: (G - 1)/G of J's. Rewards 1, 0, 0,
    0: 1/4 for each."""
    return Baseline(np.full(len(rewards_G), rewards_G.mean()), rewards_G)


def leave_one_out(rewards_G: FloatArray) -> Baseline:
    """The mean of the others (RLOO, arXiv 2402.14740). Gradient: J's. Rewards 1, 0, 0, 0: 0 for the
    first and 1/3 for each other."""
    others = len(rewards_G) - 1
    return Baseline((rewards_G.sum() - rewards_G) / others, rewards_G)


def virtual_best(rewards_G: FloatArray, *, best: float) -> Baseline:
    """The mean of the group with one more episode that earned `best` (NGRPO, arXiv 2509.18851, eq.
    6). Gradient: G/(G + 1) of J's; what the constant adds has expectation zero, and is noise and
    entropy. Eight rewards of 0 and a best of 1: 1/9 for each, among nine."""
    compared = np.append(rewards_G, best)
    return Baseline(np.full(len(rewards_G), compared.mean()), compared)


def virtual_ends(rewards_G: FloatArray, *, worst: float, best: float) -> Baseline:
    """The mean of the group; of a group of equal rewards with one more that earned `best`, where
    they lie nearer to `worst`, and else one that earned `worst`: failures are pushed down,
    successes up. Our reading of AVSPO (arXiv 2605.21125), of which neither formula nor code was to
    be had.

    Gradient: (G - 1)/G of J's, and that of a second objective, the sum over rewards r of
    (r - end(r)) P(r)^G / (G (G + 1)), P(r) being the chance of r in one episode: to fail less often
    as a whole group, and to succeed so more often. Eight rewards of 0, between 0 and 1: 1/9 for
    each; eight of 1: 8/9.
    """
    if not are_equal(rewards_G):
        return group_mean(rewards_G)
    return virtual_best(rewards_G, best=best if rewards_G.mean() < (worst + best) / 2 else worst)


def known(rewards_G: FloatArray, expected: float) -> Baseline:
    """A number that was known before the step, such as the task's running mean. Gradient: J's."""
    return Baseline(np.full(len(rewards_G), expected), rewards_G)


def batch_mean(rewards_G: FloatArray, *, batch: FloatArray) -> Baseline:
    """The mean of all N episodes of the step, this group's among them. Gradient: (N - 1)/N of
    J's."""
    return Baseline(np.full(len(rewards_G), batch.mean()), batch)


def weighted(
    rewards_G: FloatArray, *, batch: FloatArray, task_mean: float, task_count: float, batch_count: float
) -> Baseline:
    """The mean of the group's mean, the task's running mean and the batch's mean, weighted by how
    many episodes each speaks for: G, `task_count` and `batch_count`. Our definition of a weighted
    dynamic baseline; nothing was published under the name of WDB-GRPO but the name.

    Gradient: 1 - (1 + batch_count/N) / (G + task_count + batch_count) of J's. Rewards 1, 0, a task
    seen 4 times with a mean of 1/2, a batch of mean 3/4 counted as 2: (1 + 2 + 3/2) / 8 = 9/16.
    """
    total = rewards_G.sum() + task_count * task_mean + batch_count * batch.mean()
    expected = total / (len(rewards_G) + task_count + batch_count)
    return Baseline(np.full(len(rewards_G), expected), rewards_G)
