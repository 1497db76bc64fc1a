"""Plays a step: which tasks, under which seeds, and which of the groups are learnt from."""

from collections.abc import Sequence

import numpy as np

from posttrain.algorithms import processes
from posttrain.algorithms.advantages import FloatArray
from posttrain.algorithms.episode_sampler import Stream, episode_seeds
from posttrain.algorithms.rollouts import RolloutBatch, RolloutSchedule, ScoredEpisode
from posttrain.evals.groups import are_equal
from posttrain.rl.credit.episode import Group
from posttrain.rl.params import OnlineParams
from posttrain.rl.sampling.choice import Sampler


def play_step(
    rollouts: RolloutSchedule, sampler: Sampler, params: OnlineParams, *, seed: int, step: int
) -> tuple[list[ScoredEpisode], int]:
    """The episodes of a step, a group after the other, and by how many steps their weights are
    older. More tasks are played while groups that differ are missing and refills are left."""
    played: list[ScoredEpisode] = []
    missing, staleness = params.tasks_per_step, 0
    for refill in range(1 + params.sampling.max_refills):
        tasks = sampler.choose(-(-missing // processes.count()) * processes.count())
        batch = RolloutBatch(
            [task for task in tasks for _ in range(params.group_size)],
            episode_seeds(Stream.ONLINE, seed, step, refill, count=len(tasks) * params.group_size),
        )
        more, staleness = rollouts.take(batch)
        for group in groups_of(more, params.group_size):
            sampler.observe(group.task_id, has_spread=has_spread(group))
            missing -= has_spread(group)
        played += more
        if missing <= 0:
            break
    return played, staleness


def groups_of(played: Sequence[ScoredEpisode], group_size: int) -> list[Group]:
    """The members of each group that were not lost."""
    kept = [
        [one for one in played[start : start + group_size] if not one.is_lost]
        for start in range(0, len(played), group_size)
    ]
    return [
        Group(
            played[place * group_size].trajectory.task_id,
            np.array([one.rule_reward + one.bonus for one in members], dtype=np.float64),
            np.array([one.is_success for one in members], dtype=np.bool_),
        )
        for place, members in enumerate(kept)
    ]


def learnt_groups(groups: Sequence[Group], params: OnlineParams) -> list[bool]:
    """Of each group whether it is trained: with refills the first that differ, as many as a step
    has; all of them otherwise."""
    if not params.sampling.max_refills:
        return [True] * len(groups)
    num_before = np.cumsum([0, *map(has_spread, groups)])
    return [has_spread(group) and num_before[place] < params.tasks_per_step for place, group in enumerate(groups)]


def of_episodes(found: Sequence[FloatArray], played: Sequence[ScoredEpisode], group_size: int) -> list[float]:
    """One advantage for each episode, 0 for those that were lost."""
    left = [iter(advantages_G.tolist()) for advantages_G in found]
    return [0.0 if one.is_lost else next(left[place // group_size]) for place, one in enumerate(played)]


def has_spread(group: Group) -> bool:
    """Whether its rewards differ, by more than rounding."""
    return len(group.rewards_G) > 1 and not are_equal(group.rewards_G)
