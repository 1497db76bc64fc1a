"""Reads chats and preferences: OpenAI's `messages` with `tools` or the older `functions`,
Anthropic's, whose system text stands beside the messages, ShareGPT's `conversations` of `from` and
`value`, TRL's prompt and completion, preferences of TRL and OpenAI, and the research sets of xLAM
(APIGen) and AgentGym.

The chosen side of a preference is imported. A chat may be a preference too: `chosen` and `rejected`
stand beside its messages. Messages before the chosen side are not trained on, as in TRL.
"""

from collections.abc import Mapping
from typing import Any

from posttrain.data.importing.fields import SPELLINGS, Fields, from_json, listed
from posttrain.data.importing.messages import role_of

_OUTPUTS = ("output", "response", "answer")


def is_chat(record: Mapping[str, Any]) -> bool:
    """A list of messages with roles, or its JSON text."""
    content = _content(record)
    return content.lstrip().startswith("[") if isinstance(content, str) else _begins_with(content, "role")


def is_sharegpt(record: Mapping[str, Any]) -> bool:
    """A list of turns with `from`, or its JSON text."""
    content = _content(record)
    return '"from"' in content[:1000] if isinstance(content, str) else _begins_with(content, "from")


def read_chat(fields: Fields) -> Mapping[str, Any]:
    """Raises KeyError where there are no messages."""
    content = fields.take("messages")
    if content is None:
        raise KeyError("messages")
    task_id = fields.take("task_id")
    task_id = fields.raw("id") if task_id is None and fields.key("messages") != "messages" else task_id
    return {"messages": _with_chosen(from_json(content, "messages"), fields), "task_id": task_id}


def is_preference(record: Mapping[str, Any]) -> bool:
    """A prompt with a completion, or a chosen side with a rejected one."""
    has_sides = "chosen" in record and "rejected" in record
    return has_sides or ("prompt" in record and "completion" in record) or "preferred_output" in record


def read_preference(fields: Fields) -> Mapping[str, Any]:
    """Raises ValueError where both sides are equal: then there was nothing to prefer."""
    asked = fields.raw("input") if fields.content.get("preferred_output") is not None else None
    tools = {"tools": asked["tools"]} if isinstance(asked, Mapping) and asked.get("tools") else {}
    before = _messages(fields.raw("prompt") if asked is None else asked["messages"], "user")
    if (completion := fields.raw("completion")) is None:
        return {"messages": _with_chosen(before, fields), **tools}
    return {"messages": _appended(before, _messages(completion, "assistant")), **tools}


def is_instruction(record: Mapping[str, Any]) -> bool:
    """An `instruction` and what answers it (Alpaca)."""
    return isinstance(record.get("instruction"), str) and any(key in record for key in _OUTPUTS)


def read_instruction(fields: Fields) -> Mapping[str, Any]:
    """The instruction, the `input` that it is about, and the output."""
    asked = "\n\n".join(filter(None, (fields.raw("instruction"), fields.raw("input"))))
    answer = _messages(fields.raw(*_OUTPUTS), "assistant")
    return {"messages": [{"role": "user", "content": asked}, *answer], "task_id": fields.take("task_id")}


def read_xlam(fields: Fields) -> Mapping[str, Any]:
    """A `query`, the calls that answer it, and tools, each possibly as JSON text. There are no
    results: the episode is over with the calls. Raises ValueError where there are no calls."""
    query, calls, own_id = fields.raw("query"), from_json(fields.raw("answers"), "answers"), fields.raw("id")
    if not isinstance(query, str) or not isinstance(calls, list) or not calls:
        raise ValueError("its answers are no list with calls, or its query is not text")
    asked = {"role": "user", "content": query}
    return {
        "task_id": None if own_id is None else f"xlam-{own_id}",
        "messages": [asked, {"role": "assistant", "content": "", "tool_calls": calls}],
        "stop_reason": "world_over",
    }


def read_agentgym(fields: Fields) -> Mapping[str, Any]:
    """Turns with `loss` flags. The first turn instructs and becomes the system text; the second
    only agrees, without a loss, and is left out; the task is the third. Actions stay text, as the
    environments read them. Raises ValueError where there are no turns."""
    turns = listed(fields.raw("conversations"), "conversations")
    if [role_of(turn) for turn in turns[:3]] == ["user", "assistant", "user"] and turns[1].get("loss") is False:
        turns = [{"role": "system", "content": turns[0]["value"]}, *turns[2:]]
    return {"task_id": fields.raw("item_id"), "messages": turns, "tools": fields.take("tools") or []}


def _with_chosen(messages: Any, fields: Fields) -> Any:
    """The messages and the chosen side. Raises ValueError where they end with another answer."""
    chosen, rejected = fields.take("chosen"), fields.take("rejected")
    if chosen is None:
        if fields.has("rejected") and isinstance(messages, list) and messages[-1:] == _messages(rejected, "assistant"):
            raise ValueError("its answer and its rejected side are equal")
        return messages
    if chosen == rejected:
        raise ValueError("its chosen and its rejected side are equal")
    answer, before = _messages(chosen, "assistant"), _messages(messages, "user")
    if not answer:
        raise ValueError("its chosen side is empty")
    if before[-len(answer) :] == answer:  # the messages already hold what was chosen
        return messages
    if before and role_of(before[-1]) == "assistant" and role_of(answer[0]) == "assistant":
        raise ValueError("its messages end with an answer, and its chosen side is another one")
    return _appended(before, answer)


def _appended(before: list[Any], answer: list[Any]) -> list[Any]:
    if answer and role_of(answer[0]) in ("system", "user"):  # the whole conversation, prompt included
        return answer
    return [*({**one, "weight": 0} if role_of(one) == "assistant" else one for one in before), *answer]


def _messages(content: Any, role: str) -> list[Any]:
    if content is None or isinstance(content, str):
        return [{"role": role, "content": content}] if content else []
    if isinstance(content, Mapping):
        return [content]
    if not isinstance(content, list) or not all(isinstance(message, Mapping) for message in content):
        raise ValueError(f"its {role}'s side is neither text nor a list of messages")
    return content


def _content(record: Mapping[str, Any]) -> Any:
    return next((record[key] for key in SPELLINGS["record"]["messages"] if record.get(key) is not None), None)


def _begins_with(content: Any, key: str) -> bool:
    return isinstance(content, list) and bool(content) and isinstance(content[0], Mapping) and key in content[0]
