"""Turns rewards into advantages: how much better an episode was than the others of its task.
Rewards in, one number per episode out; the trainer multiplies its tokens by it.

Pure and in float64. TRL computes advantages in float32 with a tolerance on the standard deviation,
where eight rewards of 0.2 have std 1.6e-8 and pass for a group that teaches something; here a group
without a difference beyond rounding has advantages of exactly 0.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from posttrain.evals.groups import are_equal

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

STD_FLOOR = 1e-4  # TRL's: keeps a group whose rewards differ by rounding only from dividing by nearly nothing


def group_advantages(
    rewards_P_G: FloatArray, *, scale: Literal["group_std", "group_mean"], is_lost_P_G: BoolArray | None = None
) -> FloatArray:
    """Group-relative advantages, shape (P, G): the reward minus the mean of its group, in float64.

    `group_std` divides by the group's standard deviation with G-1 in the denominator (GRPO, arXiv
    2402.03300, section 4.1.2); `group_mean` does not (Dr.GRPO, arXiv 2503.20783, eq. 3), so that a
    group in which one episode of eight failed does not weigh as much as an even one. Example:
    rewards 1, 0, 0, 0 have mean 1/4 and std 1/2: `group_mean` gives 3/4, -1/4, -1/4, -1/4 and
    `group_std` twice that (over 1 + 2e-4). A lost episode has no reward: the others are their
    group, and its advantage is 0; so are all of a group of which fewer than two are left. Raises
    ValueError for fewer than two episodes in a group or a reward that is not finite: NaN would
    silently become a wrong gradient.
    """
    if rewards_P_G.ndim != 2 or rewards_P_G.shape[1] < 2:
        raise ValueError(
            f"rewards have shape {rewards_P_G.shape}; a group's mean needs (tasks, "
            "episodes) with at least 2 episodes per task"
        )
    if not np.isfinite(rewards_P_G).all():
        task, episode = np.argwhere(~np.isfinite(rewards_P_G))[0]
        raise ValueError(
            f"the reward of episode {episode} of task {task} is {rewards_P_G[task, episode]}; "
            "a score divided by zero or overflowed"
        )
    advantages_P_G: FloatArray = np.zeros(rewards_P_G.shape, np.float64)
    is_kept_P_G = np.ones(rewards_P_G.shape, np.bool_) if is_lost_P_G is None else ~is_lost_P_G
    for rewards_G, is_kept_G, advantages_G in zip(
        rewards_P_G.astype(np.float64), is_kept_P_G, advantages_P_G, strict=True
    ):
        kept = rewards_G[is_kept_G]
        if len(kept) < 2 or are_equal(kept):
            continue
        spread = kept.std(ddof=1) + STD_FLOOR if scale == "group_std" else 1.0
        advantages_G[is_kept_G] = (kept - kept.mean()) / spread
    return advantages_P_G
