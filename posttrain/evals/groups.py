"""Metrics of groups of episodes, the health of group-relative learning, by definitions that do not
change with a library's upgrade.

A group is the episodes of one task. TRL's own values are not used: its `reward_std` is of the whole
batch since 0.27, and its zero test is a tolerance on a float32 std, which takes eight rewards of
0.2 (std 1.6e-8) for different. Here rewards are compared with each other, to within rounding.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

import numpy as np
from numpy.typing import NDArray

# To be raised with any change of a definition below: it stands in every line of metrics, so that no
# two definitions are plotted as one. Version 1 compared rewards bit by bit.
DEFINITION_VERSION = 2
ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class Group:
    """Rule rewards and successes of one task's episodes, G of each, G at least 2."""

    rewards: Sequence[float]
    successes: Sequence[bool]


def group_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """`definition_version`, `reward_mean`, `reward_std` (mean over groups of the std within, G-1),
    `reward_std_batch` (of all episodes, N-1) and `frac_reward_zero_std` (share of groups whose
    rewards are all equal), split into `_all_bad` (nobody succeeded), `_all_good` (all did),
    `_other`.

    Groups (0, 1) and (1, 1): stds 0.7071 and 0, so reward_std = 0.3536; the batch 0, 1, 1, 1 has
    std 0.5; half the groups teach nothing, all good. Groups may differ in size. Raises ValueError
    where there is no group, or one with fewer than two episodes: it has no std.
    """
    if not groups or any(len(group.rewards) < 2 or len(group.rewards) != len(group.successes) for group in groups):
        raise ValueError(
            f"{len(groups)} groups; each needs two or more rewards, and as many successes, to have a spread"
        )
    equal = [group for group in groups if are_equal(group.rewards)]
    all_bad = sum(not any(group.successes) for group in equal)
    all_good = sum(all(group.successes) for group in equal)
    rewards_N = np.concatenate([np.asarray(group.rewards, dtype=np.float64) for group in groups])
    return {
        "definition_version": DEFINITION_VERSION,
        "reward_mean": float(rewards_N.mean()),
        "reward_std": math.fsum(_std(group.rewards) for group in groups) / len(groups),
        "reward_std_batch": _std(rewards_N),
        "frac_reward_zero_std": len(equal) / len(groups),
        "frac_reward_zero_std_all_bad": all_bad / len(groups),
        "frac_reward_zero_std_all_good": all_good / len(groups),
        "frac_reward_zero_std_other": (len(equal) - all_bad - all_good) / len(groups),
    }


def pass_hat_k(successes: Sequence[Sequence[bool]], k: int) -> float:
    """pass^k, the chance that k independent episodes of a task all succeed (tau-bench, arXiv
    2406.12045, section 3): the mean over tasks of C(c, k) / C(n, k), for c successes among n
    samples, which is the unbiased estimate of p^k.

    One task with 3 of 4: k=1 gives 3/4, k=2 gives 3/6, k=4 gives 0. Raises ValueError where a task
    has fewer than k samples, or there is no task.
    """
    if not successes or min(len(samples) for samples in successes) < k or k < 1:
        raise ValueError(
            f"pass^{k} needs {k} or more samples of each task; the smallest has {min(map(len, successes), default=0)}"
        )
    return float(np.mean([comb(sum(samples), k) / comb(len(samples), k) for samples in successes]))


def are_equal(rewards_G: Sequence[float] | NDArray[np.float64]) -> bool:
    """True where all differ by no more than rounding, 1e-12 of the largest or of 1; such a group's
    advantages are exactly 0. -0.3 and -0.2 - 0.1 are equal, 0.2 and 0.2000001 are not."""
    rewards = np.asarray(rewards_G, dtype=np.float64)
    return float(rewards.max() - rewards.min()) <= ROUNDING * max(1.0, float(np.abs(rewards).max()))


def _std(rewards_G: Sequence[float] | np.ndarray) -> float:
    return float(np.std(np.asarray(rewards_G, dtype=np.float64), ddof=1))
