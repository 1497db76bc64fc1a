"""Extracts from message texts what a chat format wrote into them: calls, reasoning, results, tools.

Calls are parsed by the parsers of rollouts, and strictly: a call that does not parse whole refuses
the record. Python's spelling of JSON, which older sets have, is read as well. A format without
markers of its own (`[f(a=1)]`, bare JSON) is a call only where the record offers such a tool; where
it offers none of that name, nobody can tell a call from an answer, and the record is refused.
"""

import contextlib
import json
import re
from collections.abc import Collection, Mapping
from typing import Any

from posttrain.data.importing.calls import read_call
from posttrain.data.importing.fields import read_literal
from posttrain.models.call_formats.format import RawCall, ToolCallFormat
from posttrain.models.call_formats.json_formats import Hermes, Llama3Json, Mistral
from posttrain.models.call_formats.pythonic import Pythonic
from posttrain.types import ToolCall
from posttrain.worlds.tools import json_object

_REASONING = re.compile(r"\s*<think>(.*?)</think>\s*", re.DOTALL)
_MARKERS: Mapping[str, ToolCallFormat] = {
    "<tool_call>": Hermes(),
    "<|python_tag|>": Llama3Json(),
    "[TOOL_CALLS]": Mistral(),
    "<|tool_call_start|>": Pythonic(),
}
_GLAIVE = re.compile(r"<(/?)function_?call>")  # its end is missing or <|endoftext|>
_UNKNOWN_FORMATS = re.compile(
    r"<function=[\w.-]+>|<invoke name=|<function_calls>|<｜tool▁calls?▁begin｜>|```tool_code\b|\nAction Input:"
)
_BARE_LIST = re.compile(r'\s*\[\s*\{\s*"(?:name|type|function|id)"')
_RESPONSE = re.compile(r"<tool_response>(.*?)</tool_response>", re.DOTALL)
_WRAPPER = {"name", "content", "tool_call_id"}
_TOOLS = re.compile(r"<tools>(.*?)</tools>", re.DOTALL)
_LISTED = re.compile(r'\[?\s*\{\s*"(?:name|type|function)"\s*:')  # in a system's text without marks: ToolACE, glaive
_GAP = re.compile(r"[\s,]*")


def split_reasoning(text: str) -> tuple[str, str]:
    """Reasoning and text; the reasoning is empty where the text does not begin with it."""
    found = _REASONING.match(text)
    return (found[1].strip(), text[found.end() :]) if found else ("", text)


def split_calls(text: str, offered: Collection[str] | None) -> tuple[str, list[ToolCall]]:
    """The text around the calls, and the calls without ids. `offered` are the names of the tools,
    None where the record does not say. Raises ValueError where a call cannot be read."""
    if _GLAIVE.search(text):
        text = _GLAIVE.sub(r"<\1tool_call>", text.replace("<|endoftext|>", "</tool_call>"))
    if call_format := next((one for marker, one in _MARKERS.items() if marker in text), None):
        content, raw_calls = call_format.read(text, ())
        return content, [_call(one) for one in raw_calls]
    if found := _UNKNOWN_FORMATS.search(text):
        raise ValueError(f"its agent writes a call as {found[0]!r}, which is not read: give calls as tool_calls")
    calls = _bare_calls(text, offered or ())
    if not calls or (offered is not None and not offered):  # a record without tools: its answers look like calls
        return text, []
    if others := sorted({call.name for call in calls} - set(offered or ())):
        raise ValueError(
            f"its agent's text reads as a call of {others[0][:80]!r}, and no tool of that name is offered: name its "
            "tools in the record, or give an empty list of tools where it is an answer"
        )
    return "", calls


def split_results(text: str) -> list[tuple[str, str, str]]:
    """Text, tool and call id of each `<tool_response>` in a tool's message; the whole text where
    there is none."""
    return [_unwrapped(one.strip()) for one in _RESPONSE.findall(text)] or [(text, "", "")]


def split_tools(text: str) -> tuple[str, list[Any]]:
    """The system's text without its tools, and the tools; a list in several pieces is one. Raises
    ValueError where they are no list of objects."""
    tools = [tool for found in _TOOLS.findall(text) if found.strip() for tool in _tools(found.strip())]
    if tools:
        return _TOOLS.sub("", text).strip(), tools
    if not (start := _LISTED.search(text)):
        return text, []
    end = start.start()
    while (gap := _GAP.match(text, end)) and (found := _LISTED.match(text, gap.end())):
        try:
            content, end = json.JSONDecoder().raw_decode(text, found.start())
        except (ValueError, RecursionError):
            break
        tools += content if isinstance(content, list) else [content]
    if not tools or not all(map(_is_schema, tools)):
        return text, []
    return (text[: start.start()] + text[end:]).strip(), tools


def _call(raw: RawCall) -> ToolCall:
    given = json_object(raw.arguments)
    content = read_literal(raw.arguments) if given is None else given
    # a parser that knows the arguments by another key gives the whole call as arguments
    if _has_arguments(content) and raw.name in ("", content.get("name")):
        return _named(content)
    return _named({"name": raw.name or None, "arguments": content})


def _named(content: Mapping[str, Any]) -> ToolCall:
    """A call from a text, in which null is a value."""
    as_text = {key: _compact(value) if isinstance(value, Mapping) else value for key, value in content.items()}
    return read_call(as_text, set())


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _bare_calls(text: str, offered: Collection[str]) -> list[ToolCall]:
    """The calls where the whole text is calls, else none. Raises ValueError where it begins as a
    call of an offered tool and cannot be read."""
    raw = Pythonic().read(text, ())[1] or Llama3Json().read(text, ())[1]
    if not raw and _BARE_LIST.match(text):
        with contextlib.suppress(ValueError, RecursionError):
            raw = [RawCall("", json.dumps(one)) for one in json.loads(text)]
    calls = [_bare_call(one, text) for one in raw]
    if broken := [one.name for one, call in zip(raw, calls, strict=True) if not call and one.name in offered]:
        raise ValueError(f"its agent's text begins as a call of {broken[0]} and cannot be read as one: {text[:80]!r}")
    return [call for call in calls if call] if all(calls) else []


def _bare_call(raw: RawCall, text: str) -> ToolCall | None:
    """None where only the beginning looks like a call: an answer in JSON may have a name, too."""
    given = json_object(raw.arguments)
    if given is None:
        return None
    if raw.name in ("", given.get("name")):  # the whole object, which parsers of rollouts call malformed
        inner = given.get("function", given)
        return _named(inner) if _has_arguments(given) and isinstance(inner.get("name"), str) else None
    return _call(raw) if given or "(" in text or "parameters" in text else None


def _has_arguments(content: Any) -> bool:
    inner = content.get("function", content) if isinstance(content, Mapping) else None
    return isinstance(inner, Mapping) and any(key in inner for key in ("arguments", "parameters", "args"))


def _is_schema(tool: Any) -> bool:
    inner = tool.get("function", tool) if isinstance(tool, Mapping) else None
    return isinstance(inner, Mapping) and "name" in inner and bool({"parameters", "input_schema"} & set(inner))


def _unwrapped(text: str) -> tuple[str, str, str]:
    content = json_object(text or "null")
    if content is None or "content" not in content or not set(content) <= _WRAPPER:
        return text, "", ""
    inner = content["content"]
    result = inner if isinstance(inner, str) else json.dumps(inner, ensure_ascii=False)
    return result, str(content.get("name") or ""), str(content.get("tool_call_id") or "")


def _tools(text: str) -> list[Any]:
    try:
        content = read_literal(text)
    except ValueError:  # an object a line
        content = [read_literal(line) for line in text.splitlines() if line.strip()]
    return content if isinstance(content, list) else [content]
