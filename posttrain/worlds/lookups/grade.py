"""The outcome of an episode in a lookup world. Nothing in such a world changes, so that the record
alone decides."""

from collections.abc import Iterator, Mapping

from posttrain.types import Outcome, Task, Trajectory
from posttrain.worlds.lookups import scores
from posttrain.worlds.lookups.failures import failure_of
from posttrain.worlds.lookups.gold import gold_of
from posttrain.worlds.lookups.matching import holds
from posttrain.worlds.lookups.sides import Sides
from posttrain.worlds.made_calls import calls_made
from posttrain.worlds.tools import Tool

# The scores besides the general ones; the last two only where a task tests them.
SCORES = (
    *("tool_accuracy", "efficiency", "timing", "accuracy", "step", "wrong_tool"),
    *("tool_selection_accuracy", "plan_success"),
)


def grade(trajectory: Trajectory, task: Task, *, sides: Sides, tools: Mapping[str, Tool]) -> Outcome:
    """Success: the last message states the gold answer, the calls that hold it came back (none was
    made where none is right), and what was ambiguous was asked first. Strict: nothing else was
    called. The feedback is that of the first score below that has any."""
    by_name = {
        "completion": scores.completion(trajectory, task),
        "tool_accuracy": scores.tool_accuracy(trajectory, task),
        "efficiency": scores.efficiency(trajectory, task),
        "timing": scores.timing(trajectory, task),
        "accuracy": scores.accuracy(trajectory, task),
        "step": scores.step(trajectory, task),
        "format": scores.format(trajectory, task),
        "wrong_tool": scores.wrong_tool(trajectory, task),
        "redundant_call": scores.redundant_call(trajectory, task, tools),
        "format_error": scores.format_error(trajectory, task),
    }
    is_success = by_name["completion"].value == 1
    return Outcome(
        success=is_success,
        strict_success=is_success and scores.is_strict(trajectory, task),
        scores={name: score.value for name, score in by_name.items()} | dict(_abilities(trajectory, task)),
        turn_scores=tuple(by_name["step"].breakdown.values()),
        failure="" if is_success else failure_of(trajectory, task, sides),
        feedback=next((score.feedback for score in by_name.values() if score.feedback), ""),
    )


def _abilities(trajectory: Trajectory, task: Task) -> Iterator[tuple[str, float]]:
    """`tool_selection_accuracy`, where a tool is needed: 1.0 if the first call is of a needed one.
    `plan_success`, where two calls or more are: 1.0 if all that hold the answer came back."""
    gold, calls = gold_of(task), calls_made(trajectory)
    if gold.calls:
        is_needed = bool(calls) and calls[0].name in {wanted.name for wanted in gold.calls}
        yield "tool_selection_accuracy", float(is_needed)
    if len(gold.calls) > 1:
        yield "plan_success", float(holds(calls, gold))
