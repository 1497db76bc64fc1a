"""Reads spans of OpenTelemetry by its conventions for generative AI, by OpenLLMetry's
`gen_ai.prompt.N` and by OpenInference's `llm.input_messages.N`.

Spans of one trace, or of one `gen_ai.conversation.id`, are a record: its longest chat, in which
what any chat wrote is the agent's, with the reasoning that later prompts may lack. Assistant
messages that none of several chats wrote are not trained on.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from posttrain.data.importing.fields import Fields, from_json, listed
from posttrain.data.importing.messages import role_of, words_of
from posttrain.data.importing.rows import own_columns

_CHATS, _AGENTS = ("chat", "generate_content", "text_completion", "LLM"), ("invoke_agent", "AGENT")
_TOOLS = ("execute_tool", "TOOL")
_READ = re.compile(  # attributes that are read, or say how a model was called and what it cost
    r"gen_ai\.(operation|provider|system|request|response|usage|agent|conversation|tool|input|output|prompt|completion"
    r"|system_instructions|evaluation\.(name|score))\b.*|(input|output)\.(value|mime_type)|openinference\.span\.kind"
    r"|error\.type|posttrain\..*|llm\.(input_messages|output_messages|model_name|token_count|tools|request|provider|system)\b.*"
)
_FLAT = (("gen_ai.prompt", "gen_ai.completion"), ("llm.input_messages", "llm.output_messages"))


def join_parts(items: Iterable[Any]) -> Iterator[Any]:
    """Joins the spans of a conversation to a record `spans`, and OpenHands' events that stand alone
    to a record `history`; both come behind the whole records."""
    traces: dict[str, list[Any]] = {}
    events: list[Any] = []
    for item in items:
        if isinstance(item, Mapping) and "source" in item and {"action", "observation"} & set(item):
            events.append(item)
        elif (spans := _spans_in(item)) is None:
            yield item
        else:
            for span in spans:
                trace = span.get("traceId") or span.get("trace_id") or span.get("context", {}).get("trace_id")
                traces.setdefault(str(trace), []).append(span)
    conversations: dict[str, list[Any]] = {}
    for trace, spans in traces.items():
        names = (_values(span).get("gen_ai.conversation.id") for span in spans)
        conversations.setdefault(str(next(filter(None, names), trace)), []).extend(spans)
    yield from ({"spans": spans} for spans in conversations.values())
    yield from [{"history": events}] if events else []


def read_otel(fields: Fields) -> Mapping[str, Any]:
    """Raises ValueError where no chat has messages."""
    spans = sorted(listed(fields.raw("spans"), "spans"), key=lambda span: str(span.get("startTimeUnixNano")))
    values, unread = list(map(_values, spans)), fields.unread
    kinds = [one.get("gen_ai.operation.name") or one.get("openinference.span.kind") or "other" for one in values]
    told = [one for kind, one in zip(kinds, values, strict=True) if kind in _CHATS and any(_said(one))]
    told = told or [one for kind, one in zip(kinds, values, strict=True) if kind in _AGENTS and any(_said(one))]
    if not told:
        raise ValueError(f"none of its {len(spans)} spans is a chat that says what was read and written")
    unread.update(f"spans: {kind}" for kind in kinds if kind not in (*_CHATS, *_AGENTS, *_TOOLS))
    unread.update(re.sub(r"\.\d+\b", ".N", key) for one in values for key in one if not _READ.fullmatch(key))
    own = next((one for one in values if "posttrain.task_id" in one), {})
    about = {key.removeprefix("posttrain."): value for key, value in own.items() if key.startswith("posttrain.")}
    messages = _conversation(list(map(_said, told)), unread) + from_json(about.get("messages_after", "[]"), "messages")
    answered = {
        one.get("gen_ai.tool.call.id"): one["gen_ai.tool.call.result"]
        for one in values
        if "gen_ai.tool.call.result" in one
    }
    if role_of(messages[-1]) == "assistant":  # results that no chat read
        calls = [call_id for one in words_of(messages[-1]) for call_id, _ in one[2:] if call_id in answered]
        messages += [{"role": "tool", "tool_call_id": one, "content": answered[one]} for one in calls]
    graded = [
        _values(one) for span in spans for one in span.get("events") or () if one["name"] == "gen_ai.evaluation.result"
    ]
    name, value, label = (f"gen_ai.evaluation.{key}" for key in ("name", "score.value", "score.label"))
    unread.update(key for one in graded for key in one if not _READ.fullmatch(key))
    return {
        "messages": messages,
        "tools": next(filter(None, map(_tools, reversed(values))), None),
        "seed": told[-1].get("gen_ai.request.seed"),
        "evaluations": {one[name]: one.get(value, one.get(label)) for one in graded if not about},
        **(own_columns(about) if about else {}),
    }


def _conversation(said: list[tuple[list[Any], list[Any]]], unread: set[str]) -> list[Any]:
    """The messages of the longest chat, those of the agent as the chats wrote them."""
    read, written = max(said, key=lambda one: len(one[0]) + len(one[1]))
    messages = [*read, *written]
    words, own = list(map(words_of, messages)), {}
    for before, after in said:
        for at, one in enumerate(after, len(before)):
            if words[at : at + 1] == [words_of(one)]:
                own[at] = one
            else:
                unread.add("spans: chats of other conversations")
    put = {"weight": 0} if len(said) > 1 else {}
    others = [{**one, **put} if role_of(one) == "assistant" else one for one in messages]
    return [own.get(at, one) for at, one in enumerate(others)]


def _said(values: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
    """The messages that a chat read and wrote."""
    keys = ("gen_ai.system_instructions", "gen_ai.input.messages", "gen_ai.output.messages")
    head, read, written = (from_json(values.get(key), key) or [] for key in keys)
    if head and (read or written) and not (read and role_of(read[0]) == "system"):
        read = [{"role": "system", "parts": head}, *read]
    for names in _FLAT:
        if not (read or written):
            read, written = ([_message(one) for one in _nested(values, name)] for name in names)
    return read, [{key: one[key] for key in one if key != "finish_reason"} for one in written]


def _message(flat: Mapping[str, Any]) -> dict[str, Any]:
    message = dict(flat.get("message", flat))
    if contents := message.pop("contents", None):
        message["content"] = [one["message_content"] for one in contents]
    if calls := message.pop("tool_calls", None):
        message["tool_calls"] = [one.get("tool_call", one) for one in calls]
    return message


def _nested(values: Mapping[str, Any], prefix: str) -> list[Any]:
    """`{"p.0.a": 1, "p.1.b.0.c": 2}` below `p` is `[{"a": 1}, {"b": [{"c": 2}]}]`."""
    root: dict[str, Any] = {}
    for key, value in values.items():
        *path, last = key.removeprefix(f"{prefix}.").split(".")
        inner = root if key.startswith(f"{prefix}.") else {}
        for name in path:
            inner = inner.setdefault(name, {})
        inner[last] = value
    return _listed(root) if root else []


def _listed(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    inner = {key: _listed(one) for key, one in value.items()}
    return [inner[key] for key in sorted(inner, key=int)] if all(map(str.isdigit, inner)) else inner


def _tools(values: Mapping[str, Any]) -> list[Any]:
    given = from_json(values.get("gen_ai.tool.definitions"), "gen_ai.tool.definitions")
    given = given or [from_json(one["tool"]["json_schema"], "a tool") for one in _nested(values, "llm.tools")]
    bare = {"type": "function"}
    return [
        one if "function" in one else {**bare, "function": {key: one[key] for key in one if key != "type"}}
        for one in given or _nested(values, "llm.request.functions")
    ]


def _spans_in(item: Any) -> list[Any] | None:
    """The spans of OTLP, or the item where it is one; None where it is neither."""
    try:
        if set(item) == {"resourceSpans"}:
            found = [
                one for resource in item["resourceSpans"] for scope in resource["scopeSpans"] for one in scope["spans"]
            ]
        else:
            found = [item] if {"traceId", "trace_id", "context"} & set(item) and "attributes" in item else []
        return found if [(_values(one), one.get("context", {}).get("")) for one in found] else None
    except (TypeError, LookupError, AttributeError, ValueError):
        return None


def _values(holder: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a span or an event, as OTLP's list or as an object."""
    found = holder.get("attributes") or {}
    return dict(found) if isinstance(found, Mapping) else {one["key"]: _value(one["value"]) for one in found}


def _value(typed: Mapping[str, Any]) -> Any:
    [(kind, value)] = typed.items()
    if kind == "arrayValue":
        return [_value(one) for one in value.get("values", ())]
    if kind == "kvlistValue":
        return {one["key"]: _value(one["value"]) for one in value.get("values", ())}
    return int(value) if kind == "intValue" else value
