"""Demonstrations: episodes of the world's scripted expert, as rows of the trajectories' schema."""

from collections.abc import Callable, Sequence

from posttrain.data.schemas import TrajectoryRow, trajectory_row
from posttrain.rollout.episodes import run_episodes
from posttrain.rollout.params import AgentParams
from posttrain.rollout.policy import expert_policy
from posttrain.types import Task
from posttrain.worlds.protocol import ExpertDomain


def demonstrate(
    domain: ExpertDomain,
    tasks: Sequence[Task],
    *,
    limits: AgentParams,
    seed: int,
    is_flawless: bool,
    reasoning_frac: float,
    progress: Callable[[int, int], None] | None = None,
) -> list[TrajectoryRow]:
    """One row per task, in their order. The expert draws from seed and task together, so all tasks
    share one seed."""
    expert = expert_policy(domain, is_flawless=is_flawless, reasoning_frac=reasoning_frac)
    seeds = [seed] * len(tasks)
    trajectories = run_episodes(expert, tasks, domain=domain, limits=limits, seeds=seeds, progress=progress)
    return [trajectory_row(one, task, domain.tools) for one, task in zip(trajectories, tasks, strict=True)]
