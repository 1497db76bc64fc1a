"""What was said, the tokens behind it, and how much of it still stands when the agent's own program
brings the conversation back.

Where our loop keeps the conversation it only grows. A program that keeps it may bring it back
changed (history made shorter, a note put in, another prompt): then the row is cut to the turns that
stand as they were said, so that a trained token always follows exactly the context it was sampled
in, and all behind them is read as given. Two messages are the same where they say the same: ids,
null for an empty text and the spelling of JSON arguments are representation, and so is reasoning
that was left out, because most programs have no field for it; a changed word is never forgiven.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from posttrain.runtime.limits import MAX_MESSAGE_CHARS, clip
from posttrain.types import Message, ToolCall, Turn


@dataclass(slots=True)
class Conversation:
    """`token_ids`, `mask` and `logprobs` (one length) are what an engine has seen of `messages`:
    all up to the message of the last turn.

    `schemas` are OpenAI's of the tools that stand in the prompt.
    """

    messages: list[Message]
    schemas: Sequence[Mapping[str, Any]]
    token_ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)

    def written(self) -> list[int]:
        """Where in `messages` the agent's own are."""
        return [turn.message_index for turn in self.turns if turn.message_index is not None]

    def unread(self) -> list[Message]:
        """The messages since the agent's last turn: all of them before its first, afterwards tool
        results or the user's reply."""
        return self.messages[max(self.written(), default=-1) + 1 :]

    def num_same(self, messages: Sequence[Message], schemas: Sequence[Mapping[str, Any]]) -> int:
        """How many messages another conversation begins with that are these; none where it offers
        other tools, because they stand before them all."""
        if list(schemas) != list(self.schemas):
            return 0
        is_same_M = [is_same(mine, other) for mine, other in zip(self.messages, messages, strict=False)]
        return is_same_M.index(False) if False in is_same_M else len(is_same_M)

    def num_turns_within(self, num_messages: int) -> int:
        """How many turns were over when so many messages were read or written."""
        return sum(index < num_messages for index in self.written())

    def continued(
        self, num_turns: int, messages: Sequence[Message], schemas: Sequence[Mapping[str, Any]]
    ) -> "Conversation":
        """Another conversation, whose beginning is the first `num_turns` of these turns; what
        stands behind them in `messages` is unread."""
        turns = self.turns[:num_turns]
        num_tokens = sum(turn.num_read + turn.num_written for turn in turns)
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
    """Whether two messages say the same, reasoning left out of `other` forgiven."""
    return (
        (mine.role, mine.content) == (other.role, other.content)
        and other.reasoning_content in (None, mine.reasoning_content)
        and [_canonical(call) for call in mine.tool_calls] == [_canonical(call) for call in other.tool_calls]
    )


def bounded(message: Message) -> Message:
    """Without keys, and each of its texts cut at its limit: a message that came from outside and
    not from an engine."""
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
    """Whether two calls ask the same of the same tool, whatever their ids and however their JSON is
    written."""
    return _canonical(mine) == _canonical(other)


def _canonical(call: ToolCall) -> tuple[str, str]:
    try:
        return call.name, json.dumps(
            json.loads(call.arguments or "{}"), sort_keys=True
        )  # as text: 1 equals 1.0 and true in Python
    except (ValueError, RecursionError):
        return call.name, call.arguments
