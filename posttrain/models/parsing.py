"""How the text that a policy wrote becomes a message: `<think>…</think>`, then text and
`<tool_call>{"name": …, "arguments": {…}}</tool_call>` (Hermes).

Any text is accepted: what a policy writes is data, and its mistakes are for the world to answer and
for the rewards to count. A call that cannot be read becomes a ToolCall whose arguments are the text
as it stands, so that it fails where a wrong call fails, in `Tool.call`.
"""

import json
import re
from typing import Any

from posttrain.types import Message, ToolCall

_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)  # a missing end is the message's own end
_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*"([^"\\]*)"\s*,\s*"arguments"\s*:')
_NAME = re.compile(r'"name"\s*:\s*"([^"\\]*)"')
_BRACKET = re.compile(r"[\[\]{}]")
MAX_NESTING = 100  # people nest five deep; Python's readers and writers of JSON end at a thousand, with its stack
_LONE_SURROGATES = re.compile("[\ud800-\udfff]")


def parse_assistant(text: str) -> Message:
    """The message that `text` (stop token removed) is. Never raises.

    Calls are numbered `call_0`, `call_1`, …; reasoning that is empty is None; reasoning that never
    ends leaves no content and no calls, because what is thought is not said. Text around the calls
    is the content, pieces joined by a newline.

    >>>
    parse_assistant('<think>B</think><tool_call>{"name":"get_price","arguments":{"code":"4711"}}</tool_call>').tool_calls
    (ToolCall(id='call_0', name='get_price', arguments='{"code":"4711"}'),)
    """
    reasoning, said = _split_reasoning(_LONE_SURROGATES.sub("\N{REPLACEMENT CHARACTER}", text))
    calls = tuple(_read_call(f"call_{index}", found[1]) for index, found in enumerate(_CALL.finditer(said)))
    pieces = (piece.strip() for piece in _CALL.split(said)[::2])  # every second piece is the inside of a call
    content = "\n".join(piece for piece in pieces if piece)
    return Message("assistant", content, reasoning.strip() or None, calls)


def is_nested_deep(text: str) -> bool:
    """Whether more than MAX_NESTING brackets are open at one place, those in texts included."""
    depth = 0
    for bracket in _BRACKET.finditer(text) if text.count("[") + text.count("{") > MAX_NESTING else ():
        depth += 1 if bracket[0] in "[{" else -1
        if depth > MAX_NESTING:
            return True
    return False


def _split_reasoning(text: str) -> tuple[str, str]:
    """Reasoning stands first; its opening mark may be missing, because some templates write it in
    the prompt."""
    before, mark, after = text.partition("</think>")
    opened = before.lstrip().startswith("<think>")
    if not mark:
        return (before.lstrip().removeprefix("<think>"), "") if opened else ("", text)
    if not opened and ("<think>" in before or "<tool_call>" in before):
        return "", text  # not the form that reasoning has: a stray mark in text or in a call
    return before.lstrip().removeprefix("<think>"), after


def _read_call(call_id: str, written: str) -> ToolCall:
    """The name as far as it can be read; the arguments exactly as written where they can be told
    apart, else the whole text."""
    name, arguments = _as_written(written)
    try:
        content = json.loads(written)
        if isinstance(content, dict) and isinstance(content.get("name"), str) and "arguments" in content:
            if (
                name != content["name"] or _loads(arguments) != content["arguments"]
            ):  # keys in another order, further keys, escapes in the name
                name, arguments = (
                    content["name"],
                    json.dumps(content["arguments"], ensure_ascii=False, separators=(",", ":")),
                )
            return ToolCall(call_id, _storable(name), _storable(arguments))
    except (ValueError, RecursionError):  # also numbers of thousands of digits and nesting deeper than Python's stack
        pass
    return ToolCall(call_id, name, arguments)


def _as_written(written: str) -> tuple[str, str]:
    """Name and arguments cut out without reading the JSON: what stands behind `"arguments":`, its
    own closing brace not included."""
    if head := _HEAD.match(written):
        return head[1], written[head.end() :].strip().removesuffix("}").rstrip()
    name = _NAME.search(written)
    return name[1] if name else "", written.strip()


def _loads(text: str) -> Any:
    """The JSON value; None where the text is none, which equals no arguments but `null`."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def _storable(text: str) -> str:
    """Escapes of half characters are valid JSON but have no UTF-8."""
    return _LONE_SURROGATES.sub("\N{REPLACEMENT CHARACTER}", text)
