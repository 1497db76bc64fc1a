"""Messages as they stand in a record, made into the pipeline's own: the one reader for all formats.

Read are the messages of OpenAI (also `function_call` and the role `function` of its older form),
Anthropic, ShareGPT, Vercel's AI SDK and OpenTelemetry, by the spellings of `fields.py`, and calls
that an agent wrote into its text. `weight: 0`, `loss: false` and their like mark what an agent said
and nobody should learn. A text is empty only where its key says so.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from posttrain.data.importing.call_texts import names_told, split_calls, split_results, split_thought, split_tools
from posttrain.data.importing.calls import optional_text, read_call, with_ids
from posttrain.data.importing.fields import Fields, is_empty, without_nulls
from posttrain.data.importing.texts import from_json, refuse_halves
from posttrain.data.importing.tools import read_tools
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
_TEXTS = (None, "text", "input_text", "output_text")
_THOUGHTS = ("thinking", "reasoning", "thought")
_CALLS = ("tool_use", "tool_call", "tool-call", "function_call", "toolCall")
_RESULTS = ("tool_result", "tool-result", "tool_call_response", "function_response", "tool_response")
_UI_RESULTS = ("output", "errorText", "result")
_NOTHING = ("redacted_thinking", "step-start")  # parts without words


@dataclass(frozen=True, slots=True)
class Spoken:
    """The messages, the places of those of the agent's that nobody should learn, and the tools that
    were offered, None where nothing says which."""

    messages: tuple[Message, ...]
    unlearnt: frozenset[int]
    tools: tuple[Mapping[str, Any], ...] | None


@dataclass(frozen=True, slots=True)
class _Said:
    message: Message
    is_learnt: bool = True
    tool_name: str = ""  # of a result without an id


@dataclass(slots=True)
class _Parts:
    """What the content of a message holds."""

    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    results: list[_Said] = field(default_factory=list)


def read_messages(content: Any, *, system: Any, tools: Any, unread: set[str]) -> Spoken:
    """`content` is a list of messages or the JSON text of one, `system` and `tools` what stands
    beside it. Raises ValueError, or KeyError, TypeError and the like, with what is not as a format
    has it; `unread` takes the keys that nobody read."""
    listed = from_json(content, "messages")
    if not isinstance(listed, list) or not listed:
        raise ValueError("messages is not a list with messages")
    said = [one for message in _joined(listed) for one in _read(message, unread)]
    said, written = _with_system(said, system)
    offered = read_tools(tools if tools or not written else written)
    names = None if offered is None and tools is None else {tool["function"]["name"] for tool in offered or ()}
    told = names_told([one.message.content for one in said if one.message.role in ("system", "user")])
    names = names if not told else told | (names or set())
    said = [_bounded(_with_calls(one, names)) for one in said]
    messages = with_ids([one.message for one in said], [one.tool_name for one in said])
    if (length := sum(len(message.content) for message in messages)) > MAX_RECORD_CHARS:
        raise ValueError(f"it has {length} characters, and {MAX_RECORD_CHARS} are the most")
    return Spoken(messages, frozenset(index for index, one in enumerate(said) if not one.is_learnt), offered)


def _joined(listed: list[Any]) -> list[Any]:
    """With calls that stand one behind the other in a message each (ms-swift's) in one message."""
    joined: list[Any] = []
    for message in listed:
        both = [joined[-1], message] if joined else []
        if both and all(isinstance(one, Mapping) and one.get("role") in _CALL_ROLES for one in both):
            calls = [from_json(one.get("content"), "a call") for one in both]
            content = [call for some in calls for call in (some if isinstance(some, list) else [some])]
            joined[-1] = {**message, **joined[-1], "content": content}
        else:
            joined.append(message)
    return joined


def role_of(message: Any) -> Role:
    """The pipeline's name of who speaks. Raises ValueError where it is nobody's."""
    if not isinstance(message, Mapping):
        raise ValueError(f"a message is {type(message).__name__}, not an object")
    role = Fields(message, "message", set()).take("role")
    if role is None:
        raise ValueError(f"a message does not say whose it is; it has {', '.join(message)[:200]}")
    if not isinstance(role, str) or role not in ROLES:
        raise ValueError(f"role {str(role)[:80]!r} is none of {', '.join(ROLES)}")
    return ROLES[role]


def _read(message: Any, unread: set[str]) -> Iterator[_Said]:
    role = role_of(message)
    fields = Fields(message, "message", unread)
    name = fields.take("role")
    learnt, key = fields.take("learnt"), fields.key("learnt")
    if learnt not in (None, 0, 1):
        raise ValueError(f"its {key} is {str(learnt)[:80]}; a message is learnt (1) or not (0)")
    if learnt and role != "assistant":
        raise ValueError(f"the {key} of a message of the {role} is {learnt}; only what the agent says is learnt")
    if name in _CALL_ROLES:
        calls = _listed_calls(from_json(fields.take("content"), f"a {name}"), unread)
        if not calls:
            raise ValueError(f"a {name} holds no call")
        yield _Said(Message("assistant", "", fields.take("thought"), tuple(calls)), learnt != 0)
    elif role == "assistant":
        yield from _agents(fields, learnt != 0)
    elif role == "tool":
        yield from _results(fields)
    else:
        if not fields.has("content"):
            raise ValueError(f"a message of the {role} has no content; it has {', '.join(message)[:200]}")
        found = _parts(fields.take("content"), unread)
        if found.calls or found.thoughts:
            raise ValueError(f"a message of the {role} holds calls or thoughts, which are the agent's")
        yield from found.results  # Anthropic's, before what the user says
        if found.texts or not found.results:
            yield _Said(Message(role, "".join(found.texts)))
    fields.close()


def _agents(fields: Fields, is_learnt: bool) -> Iterator[_Said]:
    """One message, or several where the parts of one hold results and go on (Vercel's)."""
    has_content, content, refusal = fields.has("content"), fields.take("content"), fields.take("refusal")
    if refusal and content:
        raise ValueError("a message has a refusal beside its content, and nobody knows which the agent said")
    pieces = _pieces(content if isinstance(content, list) else [refusal or content or ""], fields.unread)
    last = pieces[-1]
    beside = _listed_calls(from_json(fields.take("calls"), "tool_calls"), fields.unread)
    if last.calls and beside and [_asked(call) for call in last.calls] != [_asked(call) for call in beside]:
        raise ValueError("a message has calls in its content and others beside it")
    last.calls = beside or last.calls
    thought = fields.take("thought")
    if thought:
        fields.raw("reasoning_details")  # the thought once more, in parts
    if beside:
        fields.raw("additional_kwargs")  # LangChain's, with the calls as the endpoint gave them
    if not isinstance(thought, str | None):
        raise ValueError("its reasoning is not text")
    if not has_content and not any((refusal, thought, last.calls)):
        raise ValueError(
            f"a message of the agent has neither content nor calls; it has {', '.join(fields.content)[:200]}"
        )
    for piece in pieces:
        text, thoughts = "".join(piece.texts), "\n".join(piece.thoughts)
        given = (thought if piece is pieces[0] else None) or thoughts
        if not given:
            given, text = split_thought(text)
        yield _Said(Message("assistant", text, given or None, tuple(piece.calls)), is_learnt)
        yield from piece.results


def _pieces(content: list[Any], unread: set[str]) -> list[_Parts]:
    pieces = [_Parts()]
    for part in content:
        found = _parts([part], unread)
        if pieces[-1].results and not found.results:
            pieces.append(_Parts())
        last = pieces[-1]
        last.texts += found.texts
        last.thoughts += found.thoughts
        last.calls += found.calls
        last.results += found.results
    return pieces


def _results(fields: Fields) -> Iterator[_Said]:
    call_id, name = optional_text(fields.take("call_id"), "a tool_call_id"), str(fields.take("tool_name") or "")
    if not fields.has("result"):
        raise ValueError(f"a result has no content; it has {', '.join(fields.content)[:200]}")
    content = fields.take("result")
    if isinstance(content, list) and any(_is(part, *_RESULTS) for part in content):
        found = _parts(content, fields.unread)
        if found.texts or found.thoughts or found.calls:
            raise ValueError("a message of a tool has something else beside its results")
        yield from found.results
        return
    text = _result_text(content, fields.unread)
    for result, of_tool, of_call in [(text, "", "")] if call_id else split_results(text):
        yield _Said(Message("tool", result, tool_call_id=call_id or of_call or None), tool_name=of_tool or name)


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
            _part(part, found, unread)
        else:
            raise ValueError(f"a part of its content is {type(part).__name__}")
    return found


def _part(part: Mapping[str, Any], found: _Parts, unread: set[str]) -> None:
    kind, fields = part.get("type"), Fields(part, "part", unread)
    if kind in _CALLS or (kind is None and "functionCall" in part):
        found.calls += _listed_calls(from_json(part.get("value"), f"a {kind}") or part, unread)
    elif kind in _RESULTS:
        found.results += _results(fields)
        fields.close()
    elif isinstance(kind, str) and (kind.startswith("tool-") or kind == "dynamic-tool"):
        _ui_tool(part.get("toolInvocation", part), kind, found, unread)
    elif kind in _TEXTS or kind in _THOUGHTS:
        text = fields.take("text")
        if not isinstance(text, str):
            raise ValueError(f"a part of its content has no text; it has {', '.join(part)[:200]}")
        (found.thoughts if kind in _THOUGHTS else found.texts).append(text)
        fields.close()
    elif kind not in _NOTHING:
        raise ValueError(f"a part of its content is {str(kind)[:80]!r}; only text can be learnt from")


def _ui_tool(part: Mapping[str, Any], kind: str, found: _Parts, unread: set[str]) -> None:
    """A call of Vercel's UI messages, with its result once there is one."""
    given = {key: value for key, value in part.items() if key not in ("type", "state", *_UI_RESULTS)}
    is_named = kind in ("dynamic-tool", "tool-invocation")
    call = read_call(given if is_named else {**given, "name": kind.removeprefix("tool-")}, unread)
    found.calls.append(call)
    for key in _UI_RESULTS:
        if part.get(key) is not None:
            found.results.append(_Said(Message("tool", _result_text(part[key], unread), tool_call_id=call.id)))


def _listed_calls(content: Any, unread: set[str]) -> list[ToolCall]:
    listed = content if isinstance(content, list) else [] if is_empty(content) else [content]
    return [read_call(call, unread) for call in listed]


def _asked(call: ToolCall) -> tuple[str, Any]:
    return call.name, json_object(call.arguments) or call.arguments


def _with_system(said: list[_Said], system: Any) -> tuple[list[_Said], list[Any]]:
    """With the system's text that stands beside the messages, and the tools that stand in it."""
    head = said[0].message if said[0].message.role == "system" else None
    beside = "".join(_parts(system, set()).texts)
    if head is not None and beside and head.content != beside:
        raise ValueError("it has a system's text beside its messages, and another among them")
    if head is None and not beside:
        return said, []
    rest, tools = split_tools(beside or said[0].message.content)
    return [_Said(Message("system", rest)), *said[head is not None :]], tools


def _with_calls(said: _Said, names: set[str] | None) -> _Said:
    """With the calls that the agent wrote into its text."""
    message = said.message
    if message.role != "assistant" or message.tool_calls:
        return said
    text, calls = split_calls(message.content, names)
    return replace(said, message=replace(message, content=text, tool_calls=tuple(calls)))


def _result_text(content: Any, unread: set[str]) -> str:
    """A result may be any JSON; parts of text are text."""
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list) and content and all(isinstance(part, Mapping) and "type" in part for part in content):
        found = _parts(content, unread)
        if not (found.thoughts or found.calls or found.results):
            return "".join(found.texts)
    if isinstance(content, Mapping) and set(content) == {"type", "value"}:  # Vercel's {type: json, value: …}
        return _result_text(content["value"], unread)
    return json.dumps(without_nulls(content), ensure_ascii=False, allow_nan=False)


def _is(part: Any, *types: str) -> bool:
    return isinstance(part, Mapping) and part.get("type") in types


def _bounded(said: _Said) -> _Said:
    """Without keys that somebody's logs have kept. What is longer than its limit is refused: half
    of a message teaches something else. So is half of a character, which no file can hold."""
    message = said.message
    texts = [message.content, message.reasoning_content or "", message.tool_call_id or ""]
    texts += [text for call in message.tool_calls for text in (call.id, call.name, call.arguments)]
    if (longest := max(map(len, texts))) > MAX_MESSAGE_CHARS:
        raise ValueError(f"one of its messages has {longest} characters, and {MAX_MESSAGE_CHARS} are the most")
    for text in texts:
        refuse_halves(text)
    reasoning = message.reasoning_content
    calls = tuple(replace(call, arguments=redact(call.arguments)) for call in message.tool_calls)
    return replace(
        said,
        message=replace(
            message,
            content=redact(message.content),
            reasoning_content=None if reasoning is None else redact(reasoning),
            tool_calls=calls,
        ),
    )
