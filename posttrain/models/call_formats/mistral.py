"""`[TOOL_CALLS]` and behind it a list of `{"name": …, "arguments": {…}, "id": …}` (Mistral up to
its third tokenizer), or once for each call `[TOOL_CALLS]name[ARGS]{…}` (since)."""

import json
import re

from posttrain.models.call_formats.form import JsonCall, Written, is_nested_deep, json_stand_in

_MARK = "[TOOL_CALLS]"
_NAMED = re.compile(r"\s*([\w.-]+)\s*(?:\[CALL_ID\]\s*\w+\s*)?(?:\[ARGS\])?\s*(?=\{|\[ARGS\])(.*)\Z", re.DOTALL)
_READER, _DECODER = JsonCall("arguments"), json.JSONDecoder()
_ID = re.compile(r',\s*"id"\s*:\s*"[^"]*"\s*\}\s*\Z')


class Mistral:
    name = "mistral"
    marks: tuple[str, ...] = (_MARK, "[ARGS]", "[CALL_ID]")
    calls = re.compile(r"\s*\[TOOL_CALLS\].*\Z", re.DOTALL)
    writes_objects = True

    def read(self, said: str) -> tuple[str, list[Written]]:
        """As `CallForm`."""
        content, *written = said.split(_MARK)
        return content.strip(), [call for text in written for call in _read(text.strip())]

    def stand_in(self, key: str, rendered: str) -> str | None:
        """As `CallForm`."""
        return json_stand_in(key, rendered) if _MARK in rendered else None

    def arguments(self, text: str, _like: str, /) -> str:
        """As they are."""
        return text


def _read(text: str) -> list[Written]:
    if named := _NAMED.match(text):
        return [Written(named[1], named[2].strip())]
    if text.startswith("["):
        return [_READER.read(_ID.sub("}", one)) for one in _members(text)]
    return [_READER.read(text)]


def _members(text: str) -> list[str]:
    """The objects of `[{…}, {…}]`; what cannot be read is the last."""
    found: list[str] = []
    rest = text[1:].lstrip()
    while rest and not rest.startswith("]"):
        try:
            if is_nested_deep(rest):
                return [*found, rest]
            _, end = _DECODER.raw_decode(rest)
        except (ValueError, RecursionError):
            return [*found, rest.removesuffix("]").rstrip()]
        found.append(rest[:end])
        rest = rest[end:].lstrip().removeprefix(",").lstrip()
    return found
