"""`[TOOL_CALLS]` and behind it a list of `{"name": …, "arguments": {…}, "id": …}` (Mistral up to
its third tokenizer), or once for each call `[TOOL_CALLS]name[ARGS]{…}` (since)."""

import re

from posttrain.models.call_formats.format import JsonCall, JsonForm, Schemas, Written, leading_values

_MARK = "[TOOL_CALLS]"
_NAMED = re.compile(r"\s*([\w.-]+)\s*(?:\[CALL_ID\]\s*\w+\s*)?(?:\[ARGS\])?\s*(?=\{|\[ARGS\])(.*)\Z", re.DOTALL)
_BEHIND = re.compile(r"\s*(?:,\s*|\].*\Z)?", re.DOTALL)  # a member of the list
_READER = JsonCall("arguments")
_ID = re.compile(r',\s*"id"\s*:\s*"[^"]*"\s*\}\s*\Z')


class Mistral(JsonForm):
    name = "mistral"
    marks: tuple[str, ...] = (_MARK, "[ARGS]", "[CALL_ID]")
    calls = re.compile(r"\s*\[TOOL_CALLS\].*\Z", re.DOTALL)
    sign = _MARK

    def read(self, said: str, _tools: Schemas, /) -> tuple[str, list[Written]]:
        """As `ToolCallFormat`."""
        content, *written = said.split(_MARK)
        return content.strip(), [call for text in written for call in _read(text.strip())]


def _read(text: str) -> list[Written]:
    if named := _NAMED.match(text):
        return [Written(named[1], named[2].strip())]
    if text.startswith("["):
        found, rest = leading_values(text[1:].lstrip(), _BEHIND)
        members = [*found, rest.removesuffix("]").rstrip()]
        return [_READER.read(_ID.sub("}", one)) for one in members if one]
    return [_READER.read(text)]
