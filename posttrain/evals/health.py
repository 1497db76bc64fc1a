"""Estimates from trajectories whether a group-relative method would learn from them, by the group
metrics of episodes that already have rewards."""

from collections.abc import Sequence

from posttrain.data.schemas import TrajectoryRow
from posttrain.evals.groups import Group, group_metrics
from posttrain.evals.passk import pass_hat_k
from posttrain.exits import DataError


def group_health(rows: Sequence[TrajectoryRow], *, success_at: float, source: str) -> dict[str, float]:
    """`group_metrics` of the episodes of one task each, with their counts, `success_rate` and
    `pass_hat_k` up to the smallest group's size.

    An episode with a reward of `success_at` or more succeeded. A task with one episode has no
    spread: it is counted as `num_single` and left out. Raises DataError, naming `source`, where a
    trajectory has no reward or no task has two episodes.
    """
    if unscored := sum(row.trajectory.reward is None for row in rows):
        raise DataError(
            f"{source}: {unscored} of {len(rows)} trajectories have no reward, so their groups have no spread; "
            "score them first"
        )
    rewards: dict[str, list[float]] = {}
    for row in rows:
        rewards.setdefault(row.trajectory.task_id, []).append(float(row.trajectory.reward or 0.0))
    groups = [Group(own, [reward >= success_at for reward in own]) for own in rewards.values() if len(own) > 1]
    if not groups:
        raise DataError(
            f"{source}: no task has two episodes among {len(rows)} trajectories, "
            "so there is no group to compare within; "
            "give the plays of one task one task_id"
        )
    smallest = min(len(group.rewards) for group in groups)
    successes = [group.successes for group in groups]
    num_episodes = sum(len(own) for own in successes)
    return {
        "num_trajectories": len(rows),
        "num_groups": len(groups),
        "num_single": len(rewards) - len(groups),
        "smallest_group": smallest,
        "largest_group": max(len(group.rewards) for group in groups),
        "num_successes": sum(sum(own) for own in successes),
        "success_rate": sum(sum(own) for own in successes) / num_episodes,
        **group_metrics(groups),
        **{f"pass_hat_{k}": pass_hat_k(successes, k) for k in range(1, min(smallest, 8) + 1)},
    }
