"""Chats: OpenAI's `messages` with `tools` or the older `functions`, Anthropic's, whose system text
stands beside the messages, and ShareGPT's `conversations` of `from` and `value`.

A record of messages may be a preference: the chosen side stands behind them, or is what they hold.
"""

from collections.abc import Mapping
from typing import Any

from posttrain.data.importing.fields import Fields
from posttrain.data.importing.texts import from_json
from posttrain.data.importing.trl_sets import with_chosen

_KEYS = ("messages", "conversations", "conversation")


def looks_like(record: Mapping[str, Any]) -> bool:
    """A list of messages with roles, or its JSON text, under `messages` or `conversations`."""
    content = _content(record)
    return content.lstrip().startswith("[") if isinstance(content, str) else _begins_with(content, "role")


def looks_like_sharegpt(record: Mapping[str, Any]) -> bool:
    """Turns that say from whom they are."""
    content = _content(record)
    return '"from"' in content[:1000] if isinstance(content, str) else _begins_with(content, "from")


def read(fields: Fields) -> Mapping[str, Any]:
    """Raises KeyError where there are no messages."""
    content = fields.take("messages")
    if content is None:
        raise KeyError("messages")
    task_id = fields.take("task_id")
    task_id = fields.raw("id") if task_id is None and fields.key("messages") != "messages" else task_id
    return {"messages": with_chosen(from_json(content, "messages"), fields), "task_id": task_id}


def _content(record: Mapping[str, Any]) -> Any:
    return next((record[key] for key in _KEYS if record.get(key) is not None), None)


def _begins_with(content: Any, key: str) -> bool:
    return isinstance(content, list) and bool(content) and isinstance(content[0], Mapping) and key in content[0]
