"""Parses the messages of a record into `types.Message`, for all formats.

Understood are the messages of OpenAI (with the older `function_call` and role `function`),
Anthropic, ShareGPT and OpenTelemetry, by the spellings of `fields.py`, and calls that an agent
wrote into its text. `weight: 0`, `loss: false` and their like mark messages of the
agent that get no loss. A text is empty only where its key says so.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from posttrain.data.importing.call_texts import split_calls, split_reasoning, split_results, split_tools
from posttrain.data.importing.calls import optional_text, pair_results, read_call
from posttrain.data.importing.fields import (
    Fields,
    from_json,
    is_empty,
    listed,
    refuse_lone_surrogates,
    without_nulls,
)
from posttrain.data.importing.tools import read_tools
from posttrain.data.inline_tools import inline_tool_names
from posttrain.runtime.limits import MAX_MESSAGE_CHARS, MAX_RECORD_CHARS
from posttrain.runtime.redaction import redact
from posttrain.types import Message, Role, ToolCall
from posttrain.worlds.tools import json_object

_CALL_ROLES = ("function_call", "tool_call")  # whose content is a call, or a list of them, as JSON
_RESULT_ROLES = ("tool", "observation", "function", "function_response", "tool_response", "tool_result", "ipython")
ROLES: Mapping[str, Role] = {
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("user", "human"), "user"),
    **dict.fromkeys(("assistant", "gpt", "chatgpt", "model", "bot", "bing", "bard", *_CALL_ROLES), "assistant"),
    **dict.fromkeys(_RESULT_ROLES, "tool"),
}
# types of the parts of a message's content
_TEXTS = (None, "text", "input_text", "output_text")
_REASONING = ("thinking", "reasoning", "thought")
_CALLS = ("tool_use", "tool_call", "tool-call", "function_call", "toolCall")
_RESULTS = ("tool_result", "tool-result", "tool_call_response", "function_response", "tool_response")


@dataclass(frozen=True, slots=True)
class ParsedConversation:
    """The messages, the positions of the agent's that get no loss, and the tools offered, None
    where the record does not say."""

    messages: tuple[Message, ...]
    untrained: frozenset[int]
    tools: tuple[Mapping[str, Any], ...] | None


@dataclass(frozen=True, slots=True)
class _Parsed:
    message: Message
    is_trained: bool = True
    tool_name: str = ""  # of a result without an id


@dataclass(slots=True)
class _Parts:
    """The content of a message by the kind of its parts."""

    texts: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    results: list[_Parsed] = field(default_factory=list)


def read_messages(
    content: Any, *, system: Any, tools: Any, unread: set[str], is_verbatim: bool = False
) -> ParsedConversation:
    """`content` is a list of messages or the JSON text of one; `system` and `tools` stand beside it
    in the record. Keys that nobody read are added to `unread`. With `is_verbatim`, no calls or
    thoughts are looked for in texts. Raises ValueError, KeyError, TypeError and the like for what
    cannot be parsed."""
    parsed = [one for message in _join_calls(listed(content, "messages")) for one in _read(message, unread)]
    parsed, tools_in_system = (parsed, []) if is_verbatim else _with_system(parsed, system)
    offered = read_tools(tools if tools or not tools_in_system else tools_in_system)
    names = None if offered is None and tools is None else {tool["function"]["name"] for tool in offered or ()}
    texts = [one.message.content for one in parsed if one.message.role in ("system", "user")]
    if described := {name for text in texts for name in inline_tool_names(text)}:
        names = described | (names or set())
    parsed = [_bounded(one if is_verbatim else _with_calls(one, names)) for one in parsed]
    messages = pair_results([one.message for one in parsed], [one.tool_name for one in parsed])
    if (length := sum(len(message.content) for message in messages)) > MAX_RECORD_CHARS:
        raise ValueError(f"it has {length} characters, and {MAX_RECORD_CHARS} are the most")
    untrained = frozenset(index for index, one in enumerate(parsed) if not one.is_trained)
    return ParsedConversation(messages, untrained, offered)


def words_of(message: Any) -> tuple[Any, ...]:
    """What a message says, to be compared: its reasoning and its arguments' spelling are left
    out."""
    told = [one.message for one in _read(message, set())]
    return tuple((one.role, one.content, *((call.id, call.name) for call in one.tool_calls)) for one in told)


def _join_calls(messages: list[Any]) -> list[Any]:
    """Join consecutive messages that hold one call each (ms-swift's) into one."""
    joined: list[Any] = []
    for message in messages:
        both = [joined[-1], message] if joined else []
        if both and all(isinstance(one, Mapping) and one.get("role") in _CALL_ROLES for one in both):
            calls = [from_json(one.get("content"), "a call") for one in both]
            content = [call for some in calls for call in (some if isinstance(some, list) else [some])]
            joined[-1] = {**message, **joined[-1], "content": content}
        else:
            joined.append(message)
    return joined


def role_of(message: Any) -> Role:
    """The message's role in OpenAI's terms. Raises ValueError where it has none that is known."""
    if not isinstance(message, Mapping):
        raise ValueError(f"a message is {type(message).__name__}, not an object")
    role = Fields(message, "message", set()).take("role")
    if role is None:
        raise ValueError(f"a message does not say whose it is; it has {', '.join(message)[:200]}")
    if not isinstance(role, str) or role not in ROLES:
        raise ValueError(f"role {str(role)[:80]!r} is none of {', '.join(ROLES)}")
    return ROLES[role]


def _read(message: Any, unread: set[str]) -> Iterator[_Parsed]:
    role = role_of(message)
    fields = Fields(message, "message", unread)
    name = fields.take("role")
    weight, key = fields.take("weight"), fields.key("weight")
    if weight not in (None, 0, 1):
        raise ValueError(f"its {key} is {str(weight)[:80]}; a message is trained on (1) or not (0)")
    if weight and role != "assistant":
        raise ValueError(f"the {key} of a message of the {role} is {weight}; only messages of the agent are trained on")
    if name in _CALL_ROLES:
        calls = _read_calls(from_json(fields.take("content"), f"a {name}"), unread)
        if not calls:
            raise ValueError(f"a {name} holds no call")
        yield _Parsed(Message("assistant", "", fields.take("reasoning"), tuple(calls)), weight != 0)
    elif role == "assistant":
        yield _assistant(fields, weight != 0)
    elif role == "tool":
        yield from _results(fields)
    else:
        if not fields.has("content"):
            raise ValueError(f"a message of the {role} has no content; it has {', '.join(message)[:200]}")
        found = _parts(fields.take("content"), unread)
        if found.calls or found.reasoning:
            raise ValueError(f"a message of the {role} holds calls or thoughts, which are the agent's")
        yield from found.results  # Anthropic's, before the user's text
        if found.texts or not found.results:
            yield _Parsed(Message(role, "".join(found.texts)))
    fields.close()


def _assistant(fields: Fields, is_trained: bool) -> _Parsed:
    has_content, content, refusal = fields.has("content"), fields.take("content"), fields.take("refusal")
    if refusal and content:
        raise ValueError("a message has a refusal beside its content, and nobody knows which of them the agent wrote")
    found = _parts(refusal or content, fields.unread)
    if found.results:
        raise ValueError("a message of the agent holds results of tools: give each a message of its own")
    beside = _read_calls(from_json(fields.take("calls"), "tool_calls"), fields.unread)
    if found.calls and beside and list(map(_comparable, found.calls)) != list(map(_comparable, beside)):
        raise ValueError("a message has calls in its content and others beside it")
    calls = beside or found.calls
    reasoning = fields.take("reasoning")
    if reasoning:
        fields.raw("reasoning_details")  # repeats it in parts
    if beside:
        fields.raw("additional_kwargs")  # LangChain's, which repeats the calls as the endpoint gave them
    if not isinstance(reasoning, str | None):
        raise ValueError("its reasoning is not text")
    if not has_content and not any((refusal, reasoning, calls)):
        keys = ", ".join(fields.content)[:200]
        raise ValueError(f"a message of the agent has neither content nor calls; it has {keys}")
    text, thoughts = "".join(found.texts), reasoning or "\n".join(found.reasoning)
    return _Parsed(Message("assistant", text, thoughts or None, tuple(calls)), is_trained)


def _results(fields: Fields) -> Iterator[_Parsed]:
    call_id, name = optional_text(fields.take("call_id"), "a tool_call_id"), str(fields.take("tool_name") or "")
    if not fields.has("result"):
        raise ValueError(f"a result has no content; it has {', '.join(fields.content)[:200]}")
    content = fields.take("result")
    parts = content if isinstance(content, list) else []
    if any(isinstance(part, Mapping) and part.get("type") in _RESULTS for part in parts):
        found = _parts(content, fields.unread)
        if found.texts or found.reasoning or found.calls:
            raise ValueError("a message of a tool has something else beside its results")
        yield from found.results
        return
    text = _result_text(content, fields.unread)
    for result, of_tool, of_call in [(text, "", "")] if call_id else split_results(text):
        yield _Parsed(Message("tool", result, tool_call_id=call_id or of_call or None), tool_name=of_tool or name)


def _parts(content: Any, unread: set[str]) -> _Parts:
    found = _Parts()
    if content is None or isinstance(content, str):
        found.texts += [content] if content else []
        return found
    if not isinstance(content, list):
        raise ValueError(f"a message's content is {type(content).__name__}, neither text nor a list of parts")
    for part in content:
        if isinstance(part, str):
            found.texts.append(part)
        elif isinstance(part, Mapping):
            _read_part(part, found, unread)
        else:
            raise ValueError(f"a part of its content is {type(part).__name__}")
    return found


def _read_part(part: Mapping[str, Any], found: _Parts, unread: set[str]) -> None:
    kind, fields = part.get("type"), Fields(part, "part", unread)
    if kind in _CALLS or (kind is None and "functionCall" in part):
        found.calls += _read_calls(from_json(part.get("value"), f"a {kind}") or part, unread)
    elif kind in _RESULTS:
        found.results += _results(fields)
        fields.close()
    elif kind in _TEXTS or kind in _REASONING:
        text = fields.take("text")
        if not isinstance(text, str):
            raise ValueError(f"a part of its content has no text; it has {', '.join(part)[:200]}")
        (found.reasoning if kind in _REASONING else found.texts).append(text)
        fields.close()
    elif kind != "redacted_thinking":
        raise ValueError(f"a part of its content is {str(kind)[:80]!r}; only text can be trained on")


def _read_calls(content: Any, unread: set[str]) -> list[ToolCall]:
    calls = content if isinstance(content, list) else [] if is_empty(content) else [content]
    return [read_call(call, unread) for call in calls]


def _comparable(call: ToolCall) -> tuple[str, Any]:
    return call.name, json_object(call.arguments) or call.arguments


def _with_system(parsed: list[_Parsed], system: Any) -> tuple[list[_Parsed], list[Any]]:
    """The messages with the system text that stands beside them, and the tools described in it."""
    head = parsed[0].message if parsed[0].message.role == "system" else None
    beside = "".join(_parts(system, set()).texts)
    if head is not None and beside and head.content != beside:
        raise ValueError("it has a system's text beside its messages, and another among them")
    if head is None and not beside:
        return parsed, []
    rest, tools = split_tools(beside or parsed[0].message.content)
    return [_Parsed(Message("system", rest)), *parsed[head is not None :]], tools


def _with_calls(parsed: _Parsed, names: set[str] | None) -> _Parsed:
    """The message with the thoughts and the calls that the agent wrote into its text."""
    message = parsed.message
    if message.role != "assistant":
        return parsed
    if not message.reasoning_content:
        thoughts, text = split_reasoning(message.content)
        message = replace(message, content=text, reasoning_content=thoughts or None)
    if not message.tool_calls:
        text, calls = split_calls(message.content, names)
        message = replace(message, content=text, tool_calls=tuple(calls))
    return replace(parsed, message=message)


def _result_text(content: Any, unread: set[str]) -> str:
    """A result as text: it may be any JSON, and parts of text are joined."""
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list) and content and all(isinstance(part, Mapping) and "type" in part for part in content):
        found = _parts(content, unread)
        if not (found.reasoning or found.calls or found.results):
            return "".join(found.texts)
    if isinstance(content, Mapping) and set(content) == {"type", "value"}:  # Vercel's {type: json, value: …}
        return _result_text(content["value"], unread)
    return json.dumps(without_nulls(content), ensure_ascii=False, allow_nan=False)


def _bounded(parsed: _Parsed) -> _Parsed:
    """The message with API keys redacted. Raises ValueError where a text is too long, because half
    a message would teach something else, or has half a character, which no file can hold."""
    message = parsed.message
    texts = [message.content, message.reasoning_content or "", message.tool_call_id or ""]
    texts += [text for call in message.tool_calls for text in (call.id, call.name, call.arguments)]
    if (longest := max(map(len, texts))) > MAX_MESSAGE_CHARS:
        raise ValueError(f"one of its messages has {longest} characters, and {MAX_MESSAGE_CHARS} are the most")
    for text in texts:
        refuse_lone_surrogates(text)
    reasoning = message.reasoning_content and redact(message.reasoning_content)
    calls = tuple(replace(call, arguments=redact(call.arguments)) for call in message.tool_calls)
    redacted = replace(message, content=redact(message.content), reasoning_content=reasoning, tool_calls=calls)
    return replace(parsed, message=redacted)
