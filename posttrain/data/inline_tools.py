"""Finds tools that are described inside a message instead of the record's list of tools, as BFCL
adds functions in the middle of a conversation."""

import re

_PARAMETERS = re.compile(r'"(?:parameters|input_schema|inputSchema)"\s*:')
_NAME = re.compile(r'"name"\s*:\s*"([^"\\]{1,128})"')


def inline_tool_names(text: str) -> set[str]:
    """Names in a text that holds JSON with parameters; empty where it holds none."""
    return set(_NAME.findall(text)) if _PARAMETERS.search(text) else set()
