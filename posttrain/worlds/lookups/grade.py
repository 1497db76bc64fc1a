"""The outcome of an episode in a lookup world, from its record alone."""

from collections.abc import Mapping

from posttrain.types import Outcome, Task, Trajectory
from posttrain.worlds.grading import OUT_OF_TIME
from posttrain.worlds.lookups import scores
from posttrain.worlds.lookups.gold import Ask
from posttrain.worlds.lookups.matching import Reading, fits, holds, read
from posttrain.worlds.lookups.scores import accuracy
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


def failure_of(episode: Reading, sides: Sides) -> str:
    """The class of a failed episode, the first that holds:

    `repeated_confirmation`: the same question put to the user twice. `<label>_flip`: a call on
    another side than the reasoning had settled on. `wrong_<label>`: a needed call sent to the other
    side, or a side taken that was to be asked for. `bad_json`: a call that does not parse.
    `wrong_tool`: a tool that no gold call names, any where none is needed; or the needed one never
    called and the value guessed. `bad_arguments`: the needed tools, but not with accepted
    arguments. `too_many_turns`: the limit of turns, tokens or time. `no_answer`: ended without an
    answer line. `wrong_value`: an answer line with another value, also where it was given without
    the calls it needs.
    """
    asked = [final.what for final in episode.finals if isinstance(final, Ask)]
    if len(set(asked)) < len(asked):
        return "repeated_confirmation"
    return _failed_calls(episode, sides) or _failed_end(episode)


def _failed_calls(episode: Reading, sides: Sides) -> str | None:
    calls, gold = episode.calls, episode.gold
    if episode.is_asked and holds(calls, gold):
        return None
    if _flips_side(episode, sides):
        return f"{sides.label}_flip"
    if gold.calls and ((calls and not episode.is_asked) or _calls_wrong_side(episode, sides)):
        return f"wrong_{sides.label}"
    if any(call.is_malformed for call in calls):
        return "bad_json"
    called = {call.name for call in calls}
    if called - {wanted.name for wanted in gold.calls}:
        return "wrong_tool"
    return (
        "bad_arguments" if calls and {wanted.name for wanted in gold.calls if wanted.holds_answer} <= called else None
    )


def _failed_end(episode: Reading) -> str:
    if episode.stop_reason in OUT_OF_TIME:
        return "too_many_turns"
    if episode.answer is None:
        return "no_answer"
    # a right value that was not looked up: the tool that holds it was passed over
    return "wrong_tool" if accuracy(episode).value else "wrong_value"


def _calls_wrong_side(episode: Reading, sides: Sides) -> bool:
    """True where a call that is no gold call goes to a side that no gold call is on, or is the twin
    of a gold call that was never made (in a task of both sides each call is on one of them)."""
    gold, calls = episode.gold.calls, [call for call in episode.calls if call.name in episode.task.tools]
    needed = {sides.side_of(wanted.name) for wanted in gold}
    missing = {wanted.name for wanted in gold if not any(fits(call, wanted) for call in episode.calls)}
    twins = {sides.without_mark(name) for name in missing}
    strays = [call.name for call in calls if not any(fits(call, wanted) for wanted in gold)]
    return any(
        sides.side_of(name) not in needed or (name not in missing and sides.without_mark(name) in twins)
        for name in strays
    )


def _flips_side(episode: Reading, sides: Sides) -> bool:
    """True where a call goes to another side than the last reasoning before it settled on."""
    settled: str | None = None
    for _, message in episode.messages:
        settled = sides.stated_in(message.reasoning_content or "") or settled
        if settled is not None and any(
            sides.side_of(call.name) != settled for call in message.tool_calls if call.name in episode.task.tools
        ):
            return True
    return False
