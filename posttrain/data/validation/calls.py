"""Checks each tool call: the tool was offered, the arguments parse, and they fit its JSON schema.

Calls are judged by the schemas in the row itself, not by a world's code, so that imported
trajectories are judged by the same rule. An argument that the schema does not list is refused
although JSON Schema would let it pass: the tool could not take it. Each distinct call is judged
once.
"""

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from posttrain.data.inline_tools import inline_tool_names
from posttrain.data.validation.bounded_schema import fits, is_schema
from posttrain.worlds.tools import json_object

_SHORT_CHARS = 1024  # arguments up to this length are cached with their verdict


@dataclass(frozen=True, slots=True)
class CallChecks:
    """One entry per call, shape (C,), but for `has_schemas`, one per trajectory, shape (N,): its
    tools are OpenAI function schemas, as far as it called them.

    A check that an earlier one makes impossible (not offered, not parsed, no schema) is True: one
    mistake gives one reason.
    """

    is_offered: NDArray[np.bool_]
    parses: NDArray[np.bool_]
    fits_schema: NDArray[np.bool_]
    has_schemas: NDArray[np.bool_]


def check_calls(rows: pa.Table, calls: pa.Table) -> CallChecks:
    """`rows` is a batch of TRAJECTORIES_SCHEMA; `calls` its calls with `row`, `turn`, `name` and
    `arguments`."""
    encoded = rows["tools"].combine_chunks().dictionary_encode()
    offers = [_schemas_by_name(text or "[]") for text in encoded.dictionary.to_pylist()]
    offer_of_row = encoded.indices.fill_null(0).to_numpy(zero_copy_only=False)
    has_schemas = np.array([offers[offer] is not None for offer in offer_of_row], bool)
    verdicts = np.ones((calls.num_rows, 3), bool)
    row_of_call, names = calls["row"].to_pylist(), calls["name"].to_pylist()
    for index, arguments in enumerate(calls["arguments"].to_pylist()):
        offer = offers[offer_of_row[row_of_call[index]]]
        schema = None if offer is None else offer.get(names[index])
        check = _check if len(arguments) <= _SHORT_CHARS else _check.__wrapped__
        if offer is None or not (schema is None or is_schema(schema)):
            has_schemas[row_of_call[index]] = False
        else:
            verdicts[index] = check(schema, arguments)
    is_offered = verdicts[:, 0] | _is_described_inline(rows, calls, ~verdicts[:, 0])
    return CallChecks(is_offered, verdicts[:, 1], verdicts[:, 2], has_schemas)


@functools.lru_cache(maxsize=65536)
def _check(schema: str | None, arguments: str) -> tuple[bool, bool, bool]:
    if (given := json_object(arguments)) is None:
        return schema is not None, False, True
    return schema is not None, True, schema is None or fits(schema, given)


@functools.lru_cache(maxsize=1024)
def _schemas_by_name(text: str) -> Mapping[str, str] | None:
    """The parameters' schema of each offered tool as canonical text, so that equal schemas share
    one validator; None where the text is no JSON list of function schemas."""
    try:
        functions = [tool["function"] for tool in json.loads(text)]
        schemas = {one["name"]: json.dumps(one.get("parameters") or {}, sort_keys=True) for one in functions}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    return schemas if all(isinstance(name, str) for name in schemas) else None


def _is_described_inline(rows: pa.Table, calls: pa.Table, is_asked: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Shape (C,): of the calls that are asked about, those whose tool a user's message before them
    describes."""
    conversations = rows["messages"].combine_chunks()

    @functools.cache
    def described(row: int) -> list[tuple[int, set[str]]]:
        return _described(conversations[row].as_py())

    asked = np.flatnonzero(is_asked)
    found = np.zeros(len(is_asked), bool)
    wanted = calls.select(["row", "turn", "name"]).take(pa.array(asked)).to_pylist()
    for index, call in zip(asked, wanted, strict=True):
        found[index] = any(call["name"] in names for turn, names in described(call["row"]) if turn <= call["turn"])
    return found


def _described(messages: list[dict[str, Any]]) -> list[tuple[int, set[str]]]:
    """The tool names that each of the user's messages describes, with the turn that follows it."""
    turn, described = 0, []
    for message in messages:
        if message["role"] == "assistant":
            turn += 1
        elif message["role"] == "user" and (names := inline_tool_names(message["content"] or "")):
            described.append((turn, names))
    return described
