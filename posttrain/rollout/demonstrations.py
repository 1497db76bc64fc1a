"""What the world's scripted expert shows: played episodes, as rows of the trajectories' schema."""

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
    """One row per task, in their order. The expert draws from the seed and the task together, so
    one seed does for all of them."""
    expert = expert_policy(domain, is_flawless=is_flawless, reasoning_frac=reasoning_frac)
    played = run_episodes(expert, tasks, domain=domain, limits=limits, seeds=[seed] * len(tasks), progress=progress)
    return [trajectory_row(trajectory, task, domain.tools) for trajectory, task in zip(played, tasks, strict=True)]
