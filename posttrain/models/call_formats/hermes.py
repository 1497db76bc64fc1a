"""`<tool_call>{"name": …, "arguments": {…}}</tool_call>` (Hermes; Qwen2.5, Qwen3), any number of
them behind text."""

import re

from posttrain.models.call_formats.format import JsonCall, JsonForm, Schemas, Written, joined

_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)  # a missing end is the message's own end
_READER = JsonCall("arguments")


class Hermes(JsonForm):
    name = "hermes"
    marks: tuple[str, ...] = ("<tool_call>", "</tool_call>")
    calls = re.compile(r"\s*<tool_call>.*?(?:</tool_call>|\Z)\s*", re.DOTALL)
    sign = "<tool_call>"

    def read(self, said: str, _tools: Schemas, /) -> tuple[str, list[Written]]:
        """As `ToolCallFormat`."""
        written = [_READER.read(found[1]) for found in _CALL.finditer(said)]
        return joined(_CALL.split(said)[::2]), written  # every second piece is the inside of a call
