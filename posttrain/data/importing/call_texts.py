"""Reads what an agent's format wrote into texts: calls, thoughts, results, and the tools offered.

Calls are read by the parsers that read a policy in play, and strictly: what they take for a call
and cannot read whole refuses the record. Python's spelling of JSON, which older sets have, is read
as well. A form without marks of its own (`[f(a=1)]`, bare JSON) is a call only where the record
offers such a tool; where it offers none of that name nobody can tell a call from an answer, and the
record is refused.
"""

import contextlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from posttrain.data.importing.calls import read_call
from posttrain.data.importing.texts import read_literal
from posttrain.models.call_formats.format import ToolCallFormat, Written
from posttrain.models.call_formats.hermes import Hermes
from posttrain.models.call_formats.llama3_json import Llama3Json
from posttrain.models.call_formats.mistral import Mistral
from posttrain.models.call_formats.pythonic import Pythonic
from posttrain.types import ToolCall
from posttrain.worlds.tools import json_object

_THOUGHT = re.compile(r"\s*<think>(.*?)</think>\s*", re.DOTALL)
_MARKED: Mapping[str, ToolCallFormat] = {
    "<tool_call>": Hermes(),
    "<|python_tag|>": Llama3Json(),
    "[TOOL_CALLS]": Mistral(),
    "<|tool_call_start|>": Pythonic(),
}
_GLAIVE = re.compile(r"<(/?)function_?call>")  # its end is missing or <|endoftext|>
_UNREAD = re.compile(
    r"<function=[\w.-]+>|<invoke name=|<function_calls>|<｜tool▁calls?▁begin｜>|```tool_code\b|\nAction Input:"
)
_BARE_LIST = re.compile(r'\s*\[\s*\{\s*"(?:name|type|function|id)"')
_RESPONSE = re.compile(r"<tool_response>(.*?)</tool_response>", re.DOTALL)
_WRAPPER = {"name", "content", "tool_call_id"}
_TOOLS = re.compile(r"<tools>(.*?)</tools>", re.DOTALL)
_LISTED = re.compile(r'\[?\s*\{\s*"(?:name|type|function)"\s*:')  # in a system's text without marks: ToolACE, glaive
_GAP = re.compile(r"[\s,]*")
_NAMED = re.compile(r'"name"\s*:\s*"([^"\\]{1,128})"')
_SCHEMA = re.compile(r'"(?:parameters|input_schema|inputSchema)"\s*:')


def split_thought(text: str) -> tuple[str, str]:
    """Thought and text; the thought is empty where the text does not begin with one."""
    found = _THOUGHT.match(text)
    return (found[1].strip(), text[found.end() :]) if found else ("", text)


def split_calls(text: str, offered: Collection[str] | None) -> tuple[str, list[ToolCall]]:
    """The text around the calls, and the calls without ids. `offered` are the names of the tools,
    None where nobody said which. Raises ValueError where a call cannot be read."""
    if _GLAIVE.search(text):
        text = _GLAIVE.sub(r"<\1tool_call>", text.replace("<|endoftext|>", "</tool_call>"))
    if form := next((form for mark, form in _MARKED.items() if mark in text), None):
        said, written = form.read(text, ())
        return said, [_call(one) for one in written]
    if found := _UNREAD.search(text):
        raise ValueError(f"its agent writes a call as {found[0]!r}, a form that is not read: give calls as tool_calls")
    calls = _bare_calls(text, offered or ())
    if not calls or (offered is not None and not offered):  # a record without tools: its agent answers in this form
        return text, []
    if others := sorted({call.name for call in calls} - set(offered or ())):
        raise ValueError(
            f"its agent's text reads as a call of {others[0][:80]!r}, and no tool of that name is offered: name its "
            "tools in the record, or give an empty list of tools where it is an answer"
        )
    return "", calls


def split_results(text: str) -> list[tuple[str, str, str]]:
    """Text, tool and call id of each result in a tool's message, without what the format puts
    around it; the text itself where it has none."""
    return [_unwrapped(one.strip()) for one in _RESPONSE.findall(text)] or [(text, "", "")]


def split_tools(text: str) -> tuple[str, list[Any]]:
    """The system's text without its tools, and the tools; a list in several pieces is one. Raises
    ValueError where they are no list of objects."""
    tools: list[Any] = []
    for written in _TOOLS.findall(text):
        if written.strip():
            tools += _tools(written.strip())
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


def names_told(texts: Sequence[str]) -> set[str]:
    """The names of tools that a text of the system or a user describes with their parameters."""
    return {name for text in texts if _SCHEMA.search(text) for name in _NAMED.findall(text)}


def _call(written: Written) -> ToolCall:
    given = json_object(written.arguments)
    content = read_literal(written.arguments) if given is None else given
    if _has_arguments(content) and written.name in ("", content.get("name")):
        return _named(
            content
        )  # the whole call, which play's reader gives as arguments where it knows the key by another name
    return _named({"name": written.name or None, "arguments": content})


def _named(content: Mapping[str, Any]) -> ToolCall:
    """A call as it stands in a text: null is a value there."""
    as_text = {key: _compact(value) if isinstance(value, Mapping) else value for key, value in content.items()}
    return read_call(as_text, set())


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _bare_calls(text: str, offered: Collection[str]) -> list[ToolCall]:
    """The calls that the whole text is. Raises ValueError where it begins as a call of a tool that
    is offered and cannot be read."""
    written = Pythonic().read(text, ())[1] or Llama3Json().read(text, ())[1]
    if not written and _BARE_LIST.match(text):
        with contextlib.suppress(ValueError, RecursionError):
            written = [Written("", json.dumps(one)) for one in json.loads(text)]
    calls = [_bare_call(one, text) for one in written]
    if broken := [one.name for one, call in zip(written, calls, strict=True) if not call and one.name in offered]:
        raise ValueError(f"its agent's text begins as a call of {broken[0]} and cannot be read as one: {text[:80]!r}")
    return [call for call in calls if call] if all(calls) else []


def _bare_call(written: Written, text: str) -> ToolCall | None:
    """None where it is one by its first words alone: an answer in JSON may have a name, too."""
    given = json_object(written.arguments)
    if given is None:
        return None
    if written.name in ("", given.get("name")):  # the whole object, as of a call that is malformed in play
        inner = given.get("function", given)
        return _named(inner) if _has_arguments(given) and isinstance(inner.get("name"), str) else None
    return _call(written) if given or "(" in text or "parameters" in text else None


def _has_arguments(content: Any) -> bool:
    inner = content.get("function", content) if isinstance(content, Mapping) else None
    return isinstance(inner, Mapping) and any(key in inner for key in ("arguments", "parameters", "args"))


def _is_schema(tool: Any) -> bool:
    inner = tool.get("function", tool) if isinstance(tool, Mapping) else None
    return isinstance(inner, Mapping) and "name" in inner and bool({"parameters", "input_schema"} & set(inner))


def _unwrapped(written: str) -> tuple[str, str, str]:
    try:
        content = json.loads(written)
    except (ValueError, RecursionError):
        return written, "", ""
    if not isinstance(content, dict) or "content" not in content or not set(content) <= _WRAPPER:
        return written, "", ""
    inner = content["content"]
    text = inner if isinstance(inner, str) else json.dumps(inner, ensure_ascii=False)
    return text, str(content.get("name") or ""), str(content.get("tool_call_id") or "")


def _tools(written: str) -> list[Any]:
    try:
        content = read_literal(written)
    except ValueError:  # an object a line
        content = [read_literal(line) for line in written.splitlines() if line.strip()]
    return content if isinstance(content, list) else [content]
