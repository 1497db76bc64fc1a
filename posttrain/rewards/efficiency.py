"""Scores whether the task was done without detours: success weighted by path length: a quick
failure is not efficient, or giving up would pay."""

from posttrain.rewards.agent_actions import steps_needed, steps_taken
from posttrain.rewards.completion import is_success
from posttrain.types import Score, Task, Trajectory


def efficiency(trajectory: Trajectory, task: Task) -> Score:
    """SPL (arXiv 1807.06757, section 5): success * needed / max(taken, needed), in steps; each call
    is a step, so are a question and the answer.

    Two calls and the answer are needed (3), one call was repeated (4 taken): 0.75 on success, 0.0
    on failure.
    """
    needed, taken = steps_needed(task.gold), steps_taken(trajectory)
    value = needed / max(taken, needed) if is_success(trajectory, task) else 0.0
    feedback = f"{taken} steps where {needed} do." if taken > needed else ""
    return Score(value, {"steps_needed": float(needed), "steps_taken": float(taken)}, feedback)
