"""`{"name": …, "parameters": {…}}` and nothing else in the message (Llama 3.1 and 3.2), some with
`<|python_tag|>` before; several with `;` between are read, though Llama's templates write one.

Text that begins with a brace and names something is a call, read as far as it can be; any other
text is content. Llama's templates leave content out beside a call, so a message has one of both.
"""

import json
import re

from posttrain.models.call_formats.form import JsonCall, Written, is_nested_deep, json_stand_in

_TAG = "<|python_tag|>"
_BEGINS = re.compile(r'\s*(?:<\|python_tag\|>\s*)?\{\s*"(?:name|type|parameters)"')
_READER, _DECODER = JsonCall("parameters"), json.JSONDecoder()


class Llama3Json:
    name = "llama3_json"
    marks: tuple[str, ...] = (_TAG,)
    calls = re.compile(r'\A\s*(?:<\|python_tag\|>\s*)?\{\s*"(?:name|type|parameters)".*\Z', re.DOTALL)
    writes_objects = True

    def read(self, said: str) -> tuple[str, list[Written]]:
        """As `CallForm`."""
        if not _BEGINS.match(said):
            return said.strip(), []
        return "", [_READER.read(text) for text in _one_by_one(said.strip().removeprefix(_TAG).strip())]

    def stand_in(self, key: str, rendered: str) -> str | None:
        """As `CallForm`."""
        return json_stand_in(key, rendered) if '"parameters"' in rendered else None

    def arguments(self, text: str, _like: str, /) -> str:
        """As they are."""
        return text


def _one_by_one(text: str) -> list[str]:
    """The objects of `{…}; {…}`; what cannot be read is the last."""
    found: list[str] = []
    while text:
        try:
            if is_nested_deep(text):
                return [*found, text]
            _, end = _DECODER.raw_decode(text)
        except (ValueError, RecursionError):
            return [*found, text]
        behind = text[end:].lstrip()
        if behind and not behind.startswith(";"):
            return [*found, text]
        found.append(text[:end])
        text = behind[1:].lstrip()
    return found
