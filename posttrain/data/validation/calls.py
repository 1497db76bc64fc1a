"""Checks each tool call: the tool was offered, the arguments parse, and they fit its JSON schema.

Calls are judged by the schemas in the row itself, not by a world's code, so that imported
trajectories are judged by the same rule. An argument that the schema does not list is refused
although JSON Schema would let it pass: the tool could not take it. Each distinct call is judged
once.
"""

import functools
import json
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from posttrain.data.inline_tools import inline_tool_names
from posttrain.data.validation.bounded_schema import fits, is_schema
from posttrain.worlds.tools import json_object

_SHORT_CHARS = 1024  # arguments up to this length are cached with their verdict


def check_calls(rows: pa.Table, calls: pa.Table) -> tuple[NDArray[np.bool_], dict[str, NDArray[np.bool_]]]:
    """Checks the table of calls (`row`, `name`, `arguments`) of a batch of TRAJECTORIES_SCHEMA:
    whether the tools that a row called are OpenAI function schemas, shape (N,), and columns of the
    table of calls, shape (C,).

    A check that an earlier one makes impossible (not offered, not parsed, no schema) is True: one
    mistake gives one reason.
    """
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
    for index in np.flatnonzero(~verdicts[:, 0]):
        messages = rows["messages"][row_of_call[index]].as_py()
        asked = (message["content"] or "" for message in messages if message["role"] == "user")
        verdicts[index, 0] = any(names[index] in inline_tool_names(text) for text in asked)
    return has_schemas, dict(zip(("is_offered", "arguments_parse", "arguments_fit"), verdicts.T, strict=True))


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
