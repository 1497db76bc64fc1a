"""Estimates from trajectories whether a group-relative method would learn from them, by the group
metrics of episodes that already have rewards."""

from collections.abc import Sequence

from posttrain.data.schemas import TrajectoryRow
from posttrain.evals.groups import Group, group_metrics
from posttrain.evals.passk import pass_hat_k
from posttrain.evals.plays import Play
from posttrain.runtime.exits import DataError


def group_health(plays: Sequence[Play | TrajectoryRow], *, success_at: float, source: str) -> dict[str, float]:
    """`group_metrics` of the episodes of one task each, with their counts, `success_rate` and
    `pass_hat_k` up to the smallest group's size.

    An episode with a reward of `success_at` or more succeeded. What infrastructure ended
    (`num_lost`) or nobody scored (`num_unscored`) is no play, and left out; so is a task with one
    play, which has no spread (`num_single`). Raises DataError, naming `source`, where no task has
    two.
    """
    known = [one if isinstance(one, Play) else Play.of(one.trajectory) for one in plays]
    num_lost = sum(play.is_aborted for play in known)
    rewards: dict[str, list[float]] = {}
    for play in known:
        if play.reward is not None and not play.is_aborted:
            rewards.setdefault(play.task, []).append(play.reward)
    num_plays = sum(map(len, rewards.values()))
    groups = [Group(own, [reward >= success_at for reward in own]) for own in rewards.values() if len(own) > 1]
    if not groups:
        raise DataError(
            f"{source}: no task has two episodes among {num_plays} plays, "
            "so there is no group to compare within; "
            "give the plays of one task one task_id, or name the column of the task with --group"
        )
    smallest = min(len(group.rewards) for group in groups)
    successes = [group.successes for group in groups]
    num_episodes = sum(len(own) for own in successes)
    return {
        "num_trajectories": num_plays,
        "num_lost": num_lost,
        "num_unscored": len(plays) - num_plays - num_lost,
        "num_groups": len(groups),
        "num_single": len(rewards) - len(groups),
        "smallest_group": smallest,
        "largest_group": max(len(group.rewards) for group in groups),
        "num_successes": sum(sum(own) for own in successes),
        "success_rate": sum(sum(own) for own in successes) / num_episodes,
        **group_metrics(groups),
        **{f"pass_hat_{k}": pass_hat_k(successes, k) for k in range(1, min(smallest, 8) + 1)},
    }
