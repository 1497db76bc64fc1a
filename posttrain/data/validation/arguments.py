"""Checks calls: the arguments parse, the tool was offered, the arguments fit its JSON schema.

Judged against the schemas that the row itself carries, not against a world's code, so that imported
trajectories are judged by the same rule. A name that the schema does not list is refused although
JSON Schema would let it pass: the tool could not take it. Each distinct call is judged once.
"""

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from posttrain.data.validation.bounded_schema import fits, is_schema
from posttrain.worlds.tools import json_object

_SHORT_CHARS = 1024  # of arguments whose verdict is kept for the next equal call


@dataclass(frozen=True, slots=True)
class CallVerdicts:
    """One entry per call, shape (C,), but for `has_schemas`, one per trajectory, shape (N,): its
    tools are OpenAI function schemas, as far as it called them.

    What could not be judged (not parsed, not offered, no schema) is True behind the first: one
    mistake, one reason.
    """

    is_offered: NDArray[np.bool_]
    parses: NDArray[np.bool_]
    fits_schema: NDArray[np.bool_]
    has_schemas: NDArray[np.bool_]


def judge_calls(calls: pa.Table, tools: pa.ChunkedArray) -> CallVerdicts:
    """`calls` has `row`, `name` and `arguments`; `tools` is the batch's column of schema lists as
    JSON text, one per trajectory."""
    encoded = tools.combine_chunks().dictionary_encode()
    offers = [_schemas_by_name(text or "[]") for text in encoded.dictionary.to_pylist()]
    offer_of_row = encoded.indices.fill_null(0).to_numpy(zero_copy_only=False)
    has_schemas = np.array([offers[offer] is not None for offer in offer_of_row], bool)
    verdicts = np.ones((calls.num_rows, 3), bool)
    rows, names = calls["row"].to_pylist(), calls["name"].to_pylist()
    for index, arguments in enumerate(calls["arguments"].to_pylist()):
        offer = offers[offer_of_row[rows[index]]]
        schema = None if offer is None else offer.get(names[index])
        judge = _judge if len(arguments) <= _SHORT_CHARS else _judge.__wrapped__
        if offer is None or not (schema is None or is_schema(schema)):
            has_schemas[rows[index]] = False
        else:
            verdicts[index] = judge(schema, arguments)
    return CallVerdicts(verdicts[:, 0], verdicts[:, 1], verdicts[:, 2], has_schemas)


@functools.lru_cache(maxsize=65536)
def _judge(schema: str | None, arguments: str) -> tuple[bool, bool, bool]:
    if (given := json_object(arguments)) is None:
        return schema is not None, False, True
    return schema is not None, True, schema is None or fits(schema, given)


@functools.lru_cache(maxsize=1024)
def _schemas_by_name(text: str) -> Mapping[str, str] | None:
    """The parameters' schema of each offered tool as canonical text, so that equal schemas share
    one validator; None where the text is no JSON list of function schemas."""
    try:
        return {
            _name(tool["function"]): json.dumps(tool["function"].get("parameters") or {}, sort_keys=True)
            for tool in json.loads(text)
        }
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None


def _name(function: Mapping[str, object]) -> str:
    if not isinstance(name := function["name"], str):
        raise TypeError(name)
    return name
