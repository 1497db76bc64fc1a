"""The class of a failed episode in a lookup world: the first that holds, causes before their
consequences.

Where the calls that hold the answer all came back, no mistake on the way is the cause and only the
end is judged (`too_many_turns`, `no_answer`, `wrong_value`). Sides are read from the tools' twin
names.
"""

from collections.abc import Sequence

from posttrain.types import Task, Trajectory
from posttrain.worlds.grading import OUT_OF_TIME
from posttrain.worlds.lookups.answers import Ask, parse_final
from posttrain.worlds.lookups.gold import gold_of
from posttrain.worlds.lookups.matching import asked_first, final_answer, fits, holds
from posttrain.worlds.lookups.scores import accuracy
from posttrain.worlds.lookups.sides import Sides
from posttrain.worlds.made_calls import MadeCall, agent_messages, calls_made


def failure_of(trajectory: Trajectory, task: Task, sides: Sides) -> str:
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
    if _asks_again(trajectory):
        return "repeated_confirmation"
    return _failed_calls(trajectory, task, sides) or _failed_end(trajectory, task)


def _failed_calls(trajectory: Trajectory, task: Task, sides: Sides) -> str | None:
    calls, gold = calls_made(trajectory), gold_of(task)
    is_asked = gold.asks is None or asked_first(trajectory, gold.asks)
    if is_asked and holds(calls, gold):
        return None
    if _flips_side(trajectory, task, sides):
        return f"{sides.label}_flip"
    if gold.calls and ((calls and not is_asked) or _calls_wrong_side(calls, task, sides)):
        return f"wrong_{sides.label}"
    if any(call.is_malformed for call in calls):
        return "bad_json"
    if any(call.name not in {wanted.name for wanted in gold.calls} for call in calls):
        return "wrong_tool"
    return "bad_arguments" if calls and _all_names_called(trajectory, task) else None


def _failed_end(trajectory: Trajectory, task: Task) -> str:
    if trajectory.stop_reason in OUT_OF_TIME:
        return "too_many_turns"
    if final_answer(trajectory) is None:
        return "no_answer"
    # a right value that was not looked up: the tool that holds it was passed over
    return "wrong_tool" if accuracy(trajectory, task).value else "wrong_value"


def _all_names_called(trajectory: Trajectory, task: Task) -> bool:
    return {wanted.name for wanted in gold_of(task).calls if wanted.holds_answer} <= {
        call.name for call in calls_made(trajectory)
    }


def _asks_again(trajectory: Trajectory) -> bool:
    finals = [parse_final(message.content) for _, message in agent_messages(trajectory) if not message.tool_calls]
    asked = [final.what for final in finals if isinstance(final, Ask)]
    return len(set(asked)) < len(asked)


def _calls_wrong_side(calls: Sequence[MadeCall], task: Task, sides: Sides) -> bool:
    """True where a call that is no gold call goes to a side that no gold call is on, or is the twin
    of a gold call that was never made.

    Where "this one here or that one there?" is asked and both are looked up here, each call is on a
    side of the task; the second is still the twin of the missing call.
    """
    gold = gold_of(task).calls
    needed = {sides.side_of(wanted.name) for wanted in gold}
    missing = {wanted.name for wanted in gold if not any(fits(call, wanted) for call in calls)}
    twins = {sides.without_mark(name) for name in missing}
    strays = [call.name for call in calls if call.name in task.tools and not any(fits(call, wanted) for wanted in gold)]
    return any(
        sides.side_of(name) not in needed or (name not in missing and sides.without_mark(name) in twins)
        for name in strays
    )


def _flips_side(trajectory: Trajectory, task: Task, sides: Sides) -> bool:
    """True where a call goes to another side than the last reasoning before it settled on."""
    settled: str | None = None
    for _, message in agent_messages(trajectory):
        settled = sides.stated_in(message.reasoning_content or "") or settled
        if settled is not None and any(
            sides.side_of(call.name) != settled for call in message.tool_calls if call.name in task.tools
        ):
            return True
    return False
