"""Reads an agent's episode against its gold: the decision of each message, the final answer, and
the calls that are gold calls. The scores share these functions."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from posttrain.types import JsonValue, Message, Trajectory
from posttrain.worlds.lookups.answers import Ask, parse_final
from posttrain.worlds.lookups.gold import Answer, Gold, GoldCall
from posttrain.worlds.made_calls import MadeCall, agent_messages


class Decision(StrEnum):
    """The decision of one agent message; `NOTHING` is one that neither calls, nor asks, nor answers
    in a readable form."""

    CALL = "call"
    ASK = "ask"
    ANSWER = "answer"
    NOTHING = "nothing"


def decision(message: Message) -> Decision:
    """A message with a call is a call, whatever it also says."""
    if message.tool_calls:
        return Decision.CALL
    final = parse_final(message.content)
    if final is None:
        return Decision.NOTHING
    return Decision.ASK if isinstance(final, Ask) else Decision.ANSWER


def final_answer(trajectory: Trajectory) -> Answer | None:
    """The answer that the last agent message states; None where it calls, asks, says nothing
    readable, or there is no message."""
    messages = agent_messages(trajectory)
    if not messages or messages[-1][1].tool_calls:
        return None
    final = parse_final(messages[-1][1].content)
    return final if isinstance(final, Answer) else None


def fits(call: MadeCall, gold: GoldCall) -> bool:
    """True where a call is the gold call, as BFCL compares them: every given argument has an
    accepted value, and one left out may be left out."""
    if call.name != gold.name or call.arguments is None or set(call.arguments) - set(gold.arguments):
        return False
    return all(
        any(_equal(call.arguments[name], value) for value in accepted) if name in call.arguments else None in accepted
        for name, accepted in gold.arguments.items()
    )


def match_calls(calls: Sequence[MadeCall], gold: Gold) -> list[int | None]:
    """For each call the index of the gold call that it makes, None where it makes none; every gold
    call is made once, by the first that fits."""
    open_calls = list(range(len(gold.calls)))
    matched: list[int | None] = []
    for call in calls:
        found = next((index for index in open_calls if fits(call, gold.calls[index])), None)
        if found is not None:
            open_calls.remove(found)
        matched.append(found)
    return matched


def holds(calls: Sequence[MadeCall], gold: Gold) -> bool:
    """True where the answer was in reach: each gold call that holds it came back without error, and
    where no call is right none was made."""
    if not gold.calls:
        return not calls
    executed = [call for call in calls if call.is_executed]
    return all(any(fits(call, wanted) for call in executed) for wanted in gold.calls if wanted.holds_answer)


def asked_first(trajectory: Trajectory, asks: str) -> bool:
    """True where the agent asked for `asks` before its first call."""
    for _, message in agent_messages(trajectory):
        if message.tool_calls:
            return False
        final = parse_final(message.content)
        if isinstance(final, Ask) and final.what == asks:
            return True
    return False


def steps_needed(gold: Gold) -> int:
    """Steps of the shortest plan: its calls, the question where one is due, and the answer."""
    return len(gold.calls) + (gold.asks is not None) + 1


def steps_taken(trajectory: Trajectory) -> int:
    """Steps as `steps_needed` counts them: each call is one, also where a message makes several,
    and each message without a call."""
    return sum(max(len(message.tool_calls), 1) for _, message in agent_messages(trajectory))


def _equal(given: Any, accepted: JsonValue) -> bool:
    """Equal as a tool would take them: letters' case and a number in quotes do not matter, but true
    is not 1."""
    if isinstance(given, bool) or isinstance(accepted, bool):
        return given is accepted
    if isinstance(given, str) and isinstance(accepted, str):
        return given.strip().casefold() == accepted.strip().casefold()
    if isinstance(accepted, int | float) and isinstance(given, str):
        try:
            return float(given) == accepted
        except ValueError:
            return False
    if isinstance(given, list) and isinstance(accepted, list | tuple):
        return len(given) == len(accepted) and all(
            _equal(one, other) for one, other in zip(given, accepted, strict=True)
        )
    return bool(given == accepted)
