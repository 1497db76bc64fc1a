"""Formats in which a call is a JSON object: Hermes, Llama 3, Mistral.

The parsers change no character of arguments that can be told apart from the text around them.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from posttrain.models.call_formats.format import (
    RawCall,
    Schemas,
    is_nested_deep,
    join_content,
    loads_or_none,
    replace_lone_surrogates,
)

_DECODER = json.JSONDecoder()


class _CallReader:
    """Parses `{"name": …, KEY: {…}}`: the name as far as it can be read, arguments exactly as
    written where they can be told apart, else the whole text."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._head = re.compile(rf'\s*\{{\s*"name"\s*:\s*"([^"\\]*)"\s*,\s*"{key}"\s*:')
        self._name = re.compile(r'"name"\s*:\s*"([^"\\]*)"')

    def read(self, text: str) -> RawCall:
        name, arguments = self._as_written(text)
        try:
            content = json.loads(text)
            if self._has_no_arguments(content):
                return RawCall(replace_lone_surrogates(content["name"]), "{}")
            if _has_name(content) and self._key in content:
                # keys in another order, further keys, escapes in the name
                if name != content["name"] or loads_or_none(arguments) != content[self._key]:
                    name = content["name"]
                    arguments = json.dumps(content[self._key], ensure_ascii=False, separators=(",", ":"))
                return RawCall(replace_lone_surrogates(name), replace_lone_surrogates(arguments))
        except (ValueError, RecursionError):  # also numbers of thousands of digits, nesting beyond Python's stack
            pass
        return RawCall(name, arguments)

    def _has_no_arguments(self, content: Any) -> bool:
        keys = {"name", "id", self._key}
        return _has_name(content) and content.get(self._key) in (None, "") and set(content) <= keys

    def _as_written(self, text: str) -> tuple[str, str]:
        """Name and arguments cut out without parsing: the text behind the key less the object's
        closing brace, or the whole text."""
        if head := self._head.match(text):
            return head[1], text[head.end() :].strip().removesuffix("}").rstrip() or text.strip()
        name = self._name.search(text)
        return name[1] if name else "", text.strip()


def _has_name(content: Any) -> bool:
    return isinstance(content, Mapping) and isinstance(content.get("name"), str)


_READ_ARGUMENTS, _READ_PARAMETERS = _CallReader("arguments").read, _CallReader("parameters").read


class _JsonFormat:
    """A `ToolCallFormat` whose arguments are JSON, but for the reading."""

    writes_objects = True
    signature: str  # text beside the arguments of a call that no other format has

    def placeholder(self, key: str, rendered: str) -> str | None:
        text = json.dumps({key: key})
        return text if self.signature in rendered and text in rendered else None

    def arguments(self, text: str, _like: str, /) -> str:
        return text


class Hermes(_JsonFormat):
    """`<tool_call>{"name": …, "arguments": {…}}</tool_call>` (Hermes; Qwen2.5, Qwen3), any number
    of them behind text."""

    name = "hermes"
    markers: tuple[str, ...] = ("<tool_call>", "</tool_call>")
    calls = re.compile(r"\s*<tool_call>.*?(?:</tool_call>|\Z)\s*", re.DOTALL)
    signature = "<tool_call>"
    _inside = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)  # a missing end is the message's own end

    def read(self, text: str, _tools: Schemas, /) -> tuple[str, list[RawCall]]:
        calls = [_READ_ARGUMENTS(found[1]) for found in self._inside.finditer(text)]
        return join_content(self._inside.split(text)[::2]), calls  # every second piece is the inside of a call


class Llama3Json(_JsonFormat):
    """`{"name": …, "parameters": {…}}` and nothing else in the message (Llama 3.1 and 3.2), some
    with `<|python_tag|>` before; several with `;` between, though Llama's templates write one.
    Text that begins with a brace and names something is a call; any other is content."""

    name = "llama3_json"
    markers: tuple[str, ...] = ("<|python_tag|>",)
    calls = re.compile(r'\A\s*(?:<\|python_tag\|>\s*)?\{\s*"(?:name|type|parameters)".*\Z', re.DOTALL)
    signature = '"parameters"'
    _between = re.compile(r"\s*(?:;\s*|\Z)")

    def read(self, text: str, _tools: Schemas, /) -> tuple[str, list[RawCall]]:
        if not self.calls.match(text):
            return text.strip(), []
        found, rest = _leading_values(text.strip().removeprefix(self.markers[0]).strip(), self._between)
        return "", [_READ_PARAMETERS(one) for one in (*found, rest) if one]


class Mistral(_JsonFormat):
    """`[TOOL_CALLS]` and a list of `{"name": …, "arguments": {…}, "id": …}`, or once for each
    call `[TOOL_CALLS]name[ARGS]{…}` (since its fourth tokenizer)."""

    name = "mistral"
    markers: tuple[str, ...] = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")
    calls = re.compile(r"\s*\[TOOL_CALLS\].*\Z", re.DOTALL)
    signature = "[TOOL_CALLS]"
    _named = re.compile(r"\s*([\w.-]+)\s*(?:\[CALL_ID\]\s*\w+\s*)?(?:\[ARGS\])?\s*(?=\{|\[ARGS\])(.*)\Z", re.DOTALL)
    _after_item = re.compile(r"\s*(?:,\s*|\].*\Z)?", re.DOTALL)
    _id = re.compile(r',\s*"id"\s*:\s*"[^"]*"\s*\}\s*\Z')

    def read(self, text: str, _tools: Schemas, /) -> tuple[str, list[RawCall]]:
        content, *lists = text.split(self.signature)
        return content.strip(), [call for one in lists for call in self._calls_in(one.strip())]

    def _calls_in(self, text: str) -> list[RawCall]:
        if named := self._named.match(text):
            return [RawCall(named[1], named[2].strip())]
        if not text.startswith("["):
            return [_READ_ARGUMENTS(text)]
        found, rest = _leading_values(text[1:].lstrip(), self._after_item)
        items = [*found, rest.removesuffix("]").rstrip()]
        return [_READ_ARGUMENTS(self._id.sub("}", one)) for one in items if one]


def _leading_values(text: str, behind: re.Pattern[str]) -> tuple[list[str], str]:
    """JSON values at the beginning of a text, each followed by a match of `behind`, and the
    rest."""
    found: list[str] = []
    start = 0
    while start < len(text):  # by position: a copy of the rest for each value is quadratic in thousands of calls
        try:
            _, end = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            break
        if is_nested_deep(text[start:end]) or not (passed := behind.match(text, end)):
            break
        found.append(text[start:end])
        start = passed.end()
    return found, text[start:]
