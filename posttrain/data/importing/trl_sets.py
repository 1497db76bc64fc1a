"""TRL's prompt and completion, and preferences, of which the chosen side is taken: TRL's, OpenAI's
files, and those of chats with `chosen` and `rejected` beside the messages.

What stands before the chosen side was said before and is not learnt again, as TRL has it.
"""

from collections.abc import Mapping
from typing import Any

from posttrain.data.importing.fields import Fields
from posttrain.data.importing.messages import role_of


def looks_like(record: Mapping[str, Any]) -> bool:
    """A prompt with a completion, or a chosen side with a rejected one."""
    has_preference = "chosen" in record and "rejected" in record
    return has_preference or ("prompt" in record and "completion" in record) or "preferred_output" in record


def read(fields: Fields) -> Mapping[str, Any]:
    """Raises ValueError where both sides are equal: then there was nothing to prefer."""
    asked = fields.raw("input") if fields.content.get("preferred_output") is not None else None
    beside = {"tools": asked["tools"]} if isinstance(asked, Mapping) and asked.get("tools") else {}
    before = _messages(fields.raw("prompt") if asked is None else asked["messages"], "user")
    if (completion := fields.raw("completion")) is None:
        return {"messages": with_chosen(before, fields), **beside}
    return {"messages": _behind(before, _messages(completion, "assistant")), **beside}


def with_chosen(messages: Any, fields: Fields) -> Any:
    """The messages with the chosen side of the record behind them, or as they are where it has
    none. Raises ValueError where they end with another answer than the chosen one."""
    chosen, rejected = fields.take("chosen"), fields.take("rejected")
    if chosen is None:
        if fields.has("rejected") and isinstance(messages, list) and messages[-1:] == _messages(rejected, "assistant"):
            raise ValueError("its answer and its rejected side are equal")
        return messages
    if chosen == rejected:
        raise ValueError("its chosen and its rejected side are equal")
    said, before = _messages(chosen, "assistant"), _messages(messages, "user")
    if not said:
        raise ValueError("its chosen side is empty")
    if before[-len(said) :] == said:  # what was chosen is in the messages, too
        return messages
    if before and role_of(before[-1]) == "assistant" and role_of(said[0]) == "assistant":
        raise ValueError("its messages end with an answer, and its chosen side is another one")
    return _behind(before, said)


def _behind(before: list[Any], said: list[Any]) -> list[Any]:
    if said and role_of(said[0]) in ("system", "user"):  # the whole conversation, prompt included
        return said
    return [*map(_unlearnt, before), *said]


def _messages(content: Any, role: str) -> list[Any]:
    if content is None or isinstance(content, str):
        return [{"role": role, "content": content}] if content else []
    if isinstance(content, Mapping):
        return [content]
    if not isinstance(content, list) or not all(isinstance(message, Mapping) for message in content):
        raise ValueError(f"its {role}'s side is neither text nor a list of messages")
    return content


def _unlearnt(message: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**message, "weight": 0} if role_of(message) == "assistant" else message
