"""The calls that an agent made in an episode, with what came back, read off its messages."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posttrain.types import Message, Trajectory
from posttrain.worlds.tools import Tool, is_error, json_object


@dataclass(frozen=True, slots=True)
class MadeCall:
    """`arguments` is None where the text is no JSON object, `result` where none came."""

    message_index: int
    name: str
    arguments: Mapping[str, Any] | None
    result: str | None

    @property
    def is_malformed(self) -> bool:
        """The agent's format, not its judgement, went wrong."""
        return self.arguments is None or not self.name

    @property
    def is_executed(self) -> bool:
        """A result came back and it is no error."""
        return self.result is not None and not is_error(self.result)

    @property
    def key(self) -> str:
        """Equal for calls that ask the same, whatever the order of the arguments."""
        return f"{self.name}{json.dumps(self.arguments, sort_keys=True, ensure_ascii=False)}"


def agent_messages(trajectory: Trajectory) -> list[tuple[int, Message]]:
    """The agent's messages with their index; all of the assistant's where no turn was recorded."""
    own = {turn.message_index for turn in trajectory.turns} or range(len(trajectory.messages))
    return [
        (index, message)
        for index, message in enumerate(trajectory.messages)
        if message.role == "assistant" and index in own
    ]


def calls_made(trajectory: Trajectory) -> list[MadeCall]:
    """Every call in order, its result paired by id within the turn."""
    calls: list[MadeCall] = []
    for index, message in agent_messages(trajectory):
        results = _results_after(trajectory.messages, index)
        for call in message.tool_calls:
            waiting = results.get(call.id)
            calls.append(MadeCall(index, call.name, json_object(call.arguments), waiting.pop(0) if waiting else None))
    return calls


def report_of(messages: Sequence[Message]) -> str:
    """The last message where it is the agent's and makes no call; else nothing."""
    last = messages[-1]
    return last.content if last.role == "assistant" and not last.tool_calls else ""


def repeated_reads(calls: Sequence[MadeCall], tools: Mapping[str, Tool]) -> list[MadeCall]:
    """The calls whose result was known: of a tool that only reads, made before with equal
    arguments (also where it failed), and since then no tool was called that does not only read."""
    known: set[str] = set()
    repeated: list[MadeCall] = []
    for call in calls:
        if call.is_malformed or call.name not in tools:
            continue
        if not tools[call.name].is_read_only:
            known.clear()
            continue
        if call.key in known:
            repeated.append(call)
        known.add(call.key)
    return repeated


def _results_after(messages: Sequence[Message], index: int) -> dict[str, list[str]]:
    results: dict[str, list[str]] = {}
    for message in messages[index + 1 :]:
        if message.role != "tool":
            break
        results.setdefault(message.tool_call_id or "", []).append(message.content)
    return results
