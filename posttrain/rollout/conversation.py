"""A conversation with its tokens, and how much of it still stands when the agent's program sends it
back.

A program may send it back changed (history shortened, a note inserted): the tokens are then cut to
the turns that stand unchanged, so that a trained token always follows the context it was sampled
in. Messages are equal where their content is: ids, the spelling of JSON arguments, and reasoning
that was left out (most programs have no field for it) do not count; a changed word does.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from posttrain.runtime.limits import MAX_MESSAGE_CHARS, clip
from posttrain.types import Message, ToolCall, Turn


@dataclass(slots=True)
class Conversation:
    """`token_ids`, `mask` and `logprobs` (one length) are of the messages up to the last turn's,
    which an engine has seen. `schemas` are those of the tools in the prompt."""

    messages: list[Message]
    schemas: Sequence[Mapping[str, Any]]
    token_ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)

    def written(self) -> list[int]:
        """Indices of the agent's own messages."""
        return [turn.message_index for turn in self.turns if turn.message_index is not None]

    def unread(self) -> list[Message]:
        """The messages since the agent's last turn; all of them before its first."""
        return self.messages[max(self.written(), default=-1) + 1 :]

    def num_same(self, messages: Sequence[Message], schemas: Sequence[Mapping[str, Any]]) -> int:
        """Number of leading messages in common with another conversation; 0 where it offers other
        tools, which stand before all messages."""
        if list(schemas) != list(self.schemas):
            return 0
        is_same_M = [is_same(mine, other) for mine, other in zip(self.messages, messages, strict=False)]
        return is_same_M.index(False) if False in is_same_M else len(is_same_M)

    def num_turns_within(self, num_messages: int) -> int:
        return sum(index < num_messages for index in self.written())

    def continued(
        self, num_turns: int, messages: Sequence[Message], schemas: Sequence[Mapping[str, Any]]
    ) -> "Conversation":
        """A conversation of `messages` that keeps the first `num_turns` turns with their tokens."""
        turns = self.turns[:num_turns]
        num_tokens = sum(turn.num_read + turn.num_written for turn in turns)
        # Kept messages are ours, not the program's copies: reasoning it left out stays.
        num_kept = self.written()[num_turns - 1] + 1 if turns else 0
        return Conversation(
            messages=[*self.messages[:num_kept], *messages[num_kept:]],
            schemas=schemas,
            token_ids=self.token_ids[:num_tokens],
            mask=self.mask[:num_tokens],
            logprobs=self.logprobs[:num_tokens],
            turns=turns,
        )


def is_same(mine: Message, other: Message) -> bool:
    """True for messages equal but for ids, spelling of JSON, and reasoning left out of `other`."""
    return (
        (mine.role, mine.content) == (other.role, other.content)
        and other.reasoning_content in (None, mine.reasoning_content)
        and [_canonical(call) for call in mine.tool_calls] == [_canonical(call) for call in other.tool_calls]
    )


def bounded(message: Message) -> Message:
    """The message with keys redacted and texts cut at their limits, for one from outside."""
    reasoning = message.reasoning_content
    calls = tuple(
        ToolCall(clip(call.id, 1000), clip(call.name, 1000), clip(call.arguments, MAX_MESSAGE_CHARS))
        for call in message.tool_calls
    )
    return replace(
        message,
        content=clip(message.content, MAX_MESSAGE_CHARS),
        reasoning_content=None if reasoning is None else clip(reasoning, MAX_MESSAGE_CHARS),
        tool_calls=calls,
    )


def is_same_call(mine: ToolCall, other: ToolCall) -> bool:
    return _canonical(mine) == _canonical(other)


def _canonical(call: ToolCall) -> tuple[str, str]:
    try:
        # As text, because 1 equals 1.0 and true in Python.
        return call.name, json.dumps(json.loads(call.arguments or "{}"), sort_keys=True)
    except (ValueError, RecursionError):
        return call.name, call.arguments
