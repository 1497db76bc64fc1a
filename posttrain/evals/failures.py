"""Classifies why an episode failed: each failed episode gets one class, the first that holds in a
fixed order: causes before their consequences.

Where the calls that hold the answer all came back, no mistake on the way is the cause and only the
end is judged (`too_many_turns`, `no_answer`, `wrong_value`). Markets are read from the tools' twin
names (`get_quote`, `get_hk_quote`); in a world without twins those two classes never occur.
"""

from collections.abc import Sequence
from enum import StrEnum

from posttrain.rewards.accuracy import accuracy
from posttrain.rewards.agent_actions import MadeCall, agent_messages, asked_first, calls_made, final_answer, fits, holds
from posttrain.rewards.completion import is_success
from posttrain.types import StopReason, Task, Trajectory
from posttrain.worlds.answers import Ask, parse_final, stated_market


class Failure(StrEnum):
    """In the order in which they are tried."""

    REPEATED_CONFIRMATION = "repeated_confirmation"  # the same question put to the user twice
    MARKET_FLIP = "market_flip"  # a call in another market than the reasoning had settled on
    WRONG_MARKET = "wrong_market"  # a needed call sent to the other market, or a market taken that was to be asked for
    BAD_JSON = "bad_json"  # a call that does not parse
    # a tool that no gold call names, any where none is needed; or the needed one never called and
    # the value guessed
    WRONG_TOOL = "wrong_tool"
    BAD_ARGUMENTS = "bad_arguments"  # the needed tools, but not with accepted arguments
    TOO_MANY_TURNS = "too_many_turns"  # the limit of turns, tokens or time
    NO_ANSWER = "no_answer"  # ended without an answer line
    WRONG_VALUE = "wrong_value"  # an answer line with another value, also where it was given without the calls it needs


_OUT_OF_TIME = (StopReason.TURN_LIMIT, StopReason.TOKEN_LIMIT, StopReason.TIME_LIMIT)


def failure_of(trajectory: Trajectory, task: Task) -> Failure | None:
    """The class of a failed episode; None for a success."""
    if is_success(trajectory, task):
        return None
    if _asks_again(trajectory):
        return Failure.REPEATED_CONFIRMATION
    return _failed_calls(trajectory, task) or _failed_end(trajectory, task)


def _failed_calls(trajectory: Trajectory, task: Task) -> Failure | None:
    calls, gold = calls_made(trajectory), task.gold
    is_asked = gold.asks is None or asked_first(trajectory, gold.asks)
    if is_asked and holds(calls, gold):
        return None
    if _flips_market(trajectory, task):
        return Failure.MARKET_FLIP
    if gold.calls and ((calls and not is_asked) or _calls_wrong_market(calls, task)):
        return Failure.WRONG_MARKET
    if any(call.is_malformed for call in calls):
        return Failure.BAD_JSON
    if any(call.name not in {wanted.name for wanted in gold.calls} for call in calls):
        return Failure.WRONG_TOOL
    return Failure.BAD_ARGUMENTS if calls and _all_names_called(trajectory, task) else None


def _failed_end(trajectory: Trajectory, task: Task) -> Failure:
    if trajectory.stop_reason in _OUT_OF_TIME:
        return Failure.TOO_MANY_TURNS
    if final_answer(trajectory) is None:
        return Failure.NO_ANSWER
    # a right value that was not looked up: the tool that holds it was passed over
    return Failure.WRONG_TOOL if accuracy(trajectory, task).value else Failure.WRONG_VALUE


def _all_names_called(trajectory: Trajectory, task: Task) -> bool:
    return {wanted.name for wanted in task.gold.calls if wanted.holds_answer} <= {
        call.name for call in calls_made(trajectory)
    }


def _asks_again(trajectory: Trajectory) -> bool:
    finals = [parse_final(message.content) for _, message in agent_messages(trajectory) if not message.tool_calls]
    asked = [final.what for final in finals if isinstance(final, Ask)]
    return len(set(asked)) < len(asked)


def _calls_wrong_market(calls: Sequence[MadeCall], task: Task) -> bool:
    """Whether a call that is no gold call goes to a market that none is in, or is the twin of one
    that was never made.

    Where "A in Hong Kong or B on the mainland?" is asked and both are looked up on the mainland,
    each call is in a market of the task; the first is still the twin of the missing call.
    """
    gold = task.gold.calls
    markets = {_market_of(wanted.name) for wanted in gold}
    missing = {wanted.name for wanted in gold if not any(fits(call, wanted) for call in calls)}
    twins = {_without_market(name) for name in missing}
    strays = [call.name for call in calls if call.name in task.tools and not any(fits(call, wanted) for wanted in gold)]
    return any(
        _market_of(name) not in markets or (name not in missing and _without_market(name) in twins) for name in strays
    )


def _flips_market(trajectory: Trajectory, task: Task) -> bool:
    """Whether a call goes to another market than the last reasoning before it settled on."""
    settled: str | None = None
    for _, message in agent_messages(trajectory):
        settled = stated_market(message.reasoning_content or "") or settled
        if settled is not None and any(
            _market_of(call.name) != settled for call in message.tool_calls if call.name in task.tools
        ):
            return True
    return False


def _market_of(tool_name: str) -> str:
    """`hk` for a tool with that part in its name, `a` for any other: in a world without twins all
    are the same."""
    return "hk" if "hk" in tool_name.split("_") else "a"


def _without_market(tool_name: str) -> str:
    return "_".join(part for part in tool_name.split("_") if part != "hk")
