"""Scripted experts: generators that yield their messages and are sent the conversation after each.

`result = yield call(...)` reads like the episode itself, so that a flaw is a line at the place
where it happens and not a state to keep."""

import json
from collections.abc import Generator, Mapping, Sequence
from typing import TypeAlias

from posttrain.types import JsonValue, Message, ToolCall

Script: TypeAlias = Generator[Message, Sequence[Message], None]


class ScriptedExpert:
    """Plays one script once, from its first message to its last."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._has_begun = False

    def reply(self, messages: Sequence[Message]) -> Message:
        """Raises RuntimeError where the script had ended and the world went on."""
        try:
            if self._has_begun:
                return self._script.send(messages)
            self._has_begun = True
            return next(self._script)
        except StopIteration:
            raise RuntimeError(
                "the expert's script is at its end and the episode is not; the world answered a final message"
            ) from None


def call(name: str, arguments: Mapping[str, JsonValue], *, reasoning: str | None = None) -> Message:
    """A message with one call; the arguments are compact JSON."""
    return raw_call(name, json.dumps(arguments, ensure_ascii=False, separators=(",", ":")), reasoning=reasoning)


def raw_call(name: str, arguments: str, *, reasoning: str | None = None) -> Message:
    """A message with one call whose arguments are this text, also where it does not parse."""
    return Message("assistant", reasoning_content=reasoning, tool_calls=(ToolCall("call_1", name, arguments),))


def say(text: str, *, reasoning: str | None = None) -> Message:
    """A message without a call."""
    return Message("assistant", text, reasoning_content=reasoning)
