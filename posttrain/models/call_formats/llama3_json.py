"""`{"name": …, "parameters": {…}}` and nothing else in the message (Llama 3.1 and 3.2), some with
`<|python_tag|>` before; several with `;` between are read, though Llama's templates write one.

Text that begins with a brace and names something is a call, read as far as it can be; any other
text is content. Llama's templates leave content out beside a call, so a message has one of both.
"""

import re

from posttrain.models.call_formats.format import JsonCall, JsonForm, Schemas, Written, leading_values

_TAG = "<|python_tag|>"
_BEGINS = re.compile(r'\s*(?:<\|python_tag\|>\s*)?\{\s*"(?:name|type|parameters)"')
_BETWEEN = re.compile(r"\s*(?:;\s*|\Z)")
_READER = JsonCall("parameters")


class Llama3Json(JsonForm):
    name = "llama3_json"
    marks: tuple[str, ...] = (_TAG,)
    calls = re.compile(r'\A\s*(?:<\|python_tag\|>\s*)?\{\s*"(?:name|type|parameters)".*\Z', re.DOTALL)
    sign = '"parameters"'

    def read(self, said: str, _tools: Schemas, /) -> tuple[str, list[Written]]:
        """As `ToolCallFormat`."""
        if not _BEGINS.match(said):
            return said.strip(), []
        found, rest = leading_values(said.strip().removeprefix(_TAG).strip(), _BETWEEN)
        return "", [_READER.read(text) for text in (*found, rest) if text]
