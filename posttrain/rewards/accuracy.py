"""Scores whether the value is right, however it was come by, for worlds where no tool need be
called; `completion` is the stricter rule."""

from posttrain.rewards.agent_actions import final_answer
from posttrain.types import Score, Task, Trajectory
from posttrain.worlds.answers import format_answer, same


def accuracy(trajectory: Trajectory, task: Task) -> Score:
    """1.0 where the last message states the gold answer, else 0.0."""
    stated = final_answer(trajectory)
    is_right = stated is not None and same(stated, task.gold.answer)
    return Score(
        float(is_right), {}, "" if is_right else f"The right last line is `{format_answer(task.gold.answer)}`."
    )
