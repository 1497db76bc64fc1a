"""The outcome of an episode in a lookup world, from its record alone."""

from collections.abc import Mapping

from posttrain.types import Outcome, Task, Trajectory
from posttrain.worlds.lookups import scores
from posttrain.worlds.lookups.failures import failure_of
from posttrain.worlds.lookups.matching import Reading, holds, read
from posttrain.worlds.lookups.sides import Sides
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
    episode = read(trajectory, task)
    by_name = {
        "completion": scores.completion(episode),
        "tool_accuracy": scores.tool_accuracy(episode),
        "efficiency": scores.efficiency(episode),
        "timing": scores.timing(episode),
        "accuracy": scores.accuracy(episode),
        "step": scores.step(episode),
        "format": scores.format(episode),
        "wrong_tool": scores.wrong_tool(episode),
        "redundant_call": scores.redundant_call(episode, tools),
        "format_error": scores.format_error(episode),
    }
    is_success = by_name["completion"].value == 1
    return Outcome(
        success=is_success,
        strict_success=is_success and scores.is_strict(episode),
        scores={name: score.value for name, score in by_name.items()} | _abilities(episode),
        turn_scores=tuple(by_name["step"].breakdown.values()),
        failure="" if is_success else failure_of(episode, sides),
        feedback=next((score.feedback for score in by_name.values() if score.feedback), ""),
    )


def _abilities(episode: Reading) -> dict[str, float]:
    """`tool_selection_accuracy`, where a tool is needed: 1.0 if the first call is of a needed one.
    `plan_success`, where two calls or more are: 1.0 if all that hold the answer came back."""
    gold, calls, found = episode.gold, episode.calls, dict[str, float]()
    if gold.calls:
        is_needed = bool(calls) and calls[0].name in {wanted.name for wanted in gold.calls}
        found["tool_selection_accuracy"] = float(is_needed)
    if len(gold.calls) > 1:
        found["plan_success"] = float(holds(calls, gold))
    return found
