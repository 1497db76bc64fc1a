"""Which calls name a tool that a user described in the middle of the conversation, as BFCL adds
functions: it is no part of the row's tools, which stand at the head of a prompt, and was offered
all the same.
"""

import re
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_PARAMETERS = re.compile(r'"(?:parameters|input_schema|inputSchema)"\s*:')
_NAME = re.compile(r'"name"\s*:\s*"([^"\\]{1,128})"')


def is_told(rows: pa.Table, calls: pa.Table, is_asked: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Shape (C,): of the calls that are asked about, those whose tool a user's message before them
    describes: a JSON object with its name, and parameters. `calls` has row, turn and name."""
    conversations = rows["messages"].combine_chunks()

    @cache
    def told(row: int) -> list[tuple[int, set[str]]]:
        """The names that users describe in a row, each with the turn that follows."""
        return _told(conversations[row].as_py())

    asked = np.flatnonzero(is_asked)
    found = np.zeros(len(is_asked), bool)
    wanted = calls.select(["row", "turn", "name"]).take(pa.array(asked)).to_pylist()
    for index, call in zip(asked, wanted, strict=True):
        found[index] = any(call["name"] in names for turn, names in told(call["row"]) if turn <= call["turn"])
    return found


def _told(messages: list[dict[str, Any]]) -> list[tuple[int, set[str]]]:
    turn, told = 0, []
    for message in messages:
        content = message["content"] or ""
        if message["role"] == "assistant":
            turn += 1
        elif message["role"] == "user" and _PARAMETERS.search(content):
            told.append((turn, set(_NAME.findall(content))))
    return told
