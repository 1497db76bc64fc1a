"""Reads an agent's episode against its gold, once for all scores: the decision of each message, the
final answer, and the calls that are gold calls."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from posttrain.types import JsonValue, Message, StopReason, Task, Trajectory
from posttrain.worlds.lookups.gold import Answer, Ask, Gold, GoldCall, gold_of, parse_final
from posttrain.worlds.made_calls import MadeCall, agent_messages, calls_made


class Decision(StrEnum):
    """The decision of one agent message; `NOTHING` is one that cannot be read."""

    CALL = "call"
    ASK = "ask"
    ANSWER = "answer"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Reading:
    """An episode as its scores see it. `messages` are the agent's, with their index in the
    conversation; `finals` has for each of them what its last line states, None where it calls."""

    task: Task
    gold: Gold
    stop_reason: StopReason
    messages: Sequence[tuple[int, Message]]
    finals: Sequence[Answer | Ask | None]
    calls: Sequence[MadeCall]

    @property
    def decisions(self) -> list[Decision]:
        """A message with a call is a call, whatever it also says."""
        return [
            Decision.CALL if message.tool_calls else _stated(final)
            for (_, message), final in zip(self.messages, self.finals, strict=True)
        ]

    @property
    def answer(self) -> Answer | None:
        """The answer that the last message states; None where it states none."""
        final = self.finals[-1] if self.finals else None
        return final if isinstance(final, Answer) else None

    @property
    def is_asked(self) -> bool:
        """True where the agent asked for what is open before its first call, or nothing is."""
        if self.gold.asks is None:
            return True
        for (_, message), final in zip(self.messages, self.finals, strict=True):
            if message.tool_calls:
                return False
            if isinstance(final, Ask) and final.what == self.gold.asks:
                return True
        return False


def read(trajectory: Trajectory, task: Task) -> Reading:
    messages = agent_messages(trajectory)
    finals = [None if message.tool_calls else parse_final(message.content) for _, message in messages]
    return Reading(task, gold_of(task), trajectory.stop_reason, messages, finals, calls_made(trajectory))


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
    """For each call the index of the gold call that it is the first to make; None where of none."""
    open_calls = list(range(len(gold.calls)))
    matched: list[int | None] = []
    for call in calls:
        found = next((index for index in open_calls if fits(call, gold.calls[index])), None)
        if found is not None:
            open_calls.remove(found)
        matched.append(found)
    return matched


def holds(calls: Sequence[MadeCall], gold: Gold) -> bool:
    """True where all gold calls that hold the answer came back; none is made where none is due."""
    if not gold.calls:
        return not calls
    executed = [call for call in calls if call.is_executed]
    return all(any(fits(call, wanted) for call in executed) for wanted in gold.calls if wanted.holds_answer)


def _stated(final: Answer | Ask | None) -> Decision:
    if final is None:
        return Decision.NOTHING
    return Decision.ASK if isinstance(final, Ask) else Decision.ANSWER


def _equal(given: Any, accepted: JsonValue) -> bool:
    """Equal as a tool would take them: not by letters' case or quotes; but true is not 1."""
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
        return len(given) == len(accepted) and all(map(_equal, given, accepted))
    return bool(given == accepted)
