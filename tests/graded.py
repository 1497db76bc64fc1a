"""Gives hand-made episodes of a lookup world the verdict that their world would give."""

from dataclasses import replace

from posttrain.types import Task, Trajectory
from posttrain.worlds.grading import completed
from posttrain.worlds.lookups.grade import grade
from posttrain.worlds.stocks.codes import MARKETS_AS_SIDES
from posttrain.worlds.tools import Tool


def graded(trajectory: Trajectory, task: Task) -> Trajectory:
    tools = {name: Tool(name, "", {}, print, side_effect="none") for name in task.tools}
    outcome = grade(trajectory, task, sides=MARKETS_AS_SIDES, tools=tools)
    return replace(trajectory, outcome=completed(outcome, trajectory, tools))
