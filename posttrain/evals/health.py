"""Estimates how much a group-relative method would learn from episodes that already have
rewards."""

from collections.abc import Sequence

from posttrain.data.schemas import TrajectoryRow
from posttrain.evals.groups import Group, group_metrics
from posttrain.evals.passk import pass_hat_k
from posttrain.evals.rollout_files import Rollout
from posttrain.runtime.exits import DataError


def group_health(rollouts: Sequence[Rollout | TrajectoryRow], *, success_at: float, source: str) -> dict[str, float]:
    """`group_metrics` of the groups (episodes of one task), with their counts, `success_rate`, and
    `pass_hat_k` up to the smallest group's size.

    An episode with a reward of `success_at` or more succeeded. An episode that infrastructure ended
    (`num_lost`) or nobody scored (`num_unscored`) is left out; so is a task with one episode, which
    has no spread (`num_single`). Raises DataError, naming `source`, where no task has two.
    """
    known = [one if isinstance(one, Rollout) else Rollout.of(one.trajectory) for one in rollouts]
    num_aborted = sum(rollout.is_aborted for rollout in known)
    rewards: dict[str, list[float]] = {}
    for rollout in known:
        if rollout.reward is not None and not rollout.is_aborted:
            rewards.setdefault(rollout.task, []).append(rollout.reward)
    num_rollouts = sum(map(len, rewards.values()))
    groups = [Group(own, [reward >= success_at for reward in own]) for own in rewards.values() if len(own) > 1]
    if not groups:
        raise DataError(
            f"{source}: no task has two episodes among {num_rollouts} rollouts, so there is no group to compare "
            "within; give the rollouts of one task one task_id, or name the column of the task with --group"
        )
    smallest = min(len(group.rewards) for group in groups)
    successes = [group.successes for group in groups]
    num_episodes = sum(len(own) for own in successes)
    return {
        "num_trajectories": num_rollouts,
        "num_lost": num_aborted,
        "num_unscored": len(rollouts) - num_rollouts - num_aborted,
        "num_groups": len(groups),
        "num_single": len(rewards) - len(groups),
        "smallest_group": smallest,
        "largest_group": max(len(group.rewards) for group in groups),
        "num_successes": sum(sum(own) for own in successes),
        "success_rate": sum(sum(own) for own in successes) / num_episodes,
        **group_metrics(groups),
        **{f"pass_hat_{k}": pass_hat_k(successes, k) for k in range(1, min(smallest, 8) + 1)},
    }
