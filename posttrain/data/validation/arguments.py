"""Checks calls: the arguments parse, the tool was offered, the arguments fit its JSON schema.

Judged against the schemas that the row itself carries, not against a world's code, so that imported
trajectories are judged by the same rule. A name that the schema does not list is refused although
JSON Schema would let it pass: the tool could not take it. Each distinct call is judged once.
"""

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from posttrain.exits import DataError


@dataclass(frozen=True, slots=True)
class CallVerdicts:
    """One entry per call, shape (C,). `fits_schema` is True where it could not be judged (not
    parsed, or not offered): one mistake, one reason."""

    is_offered: NDArray[np.bool_]
    parses: NDArray[np.bool_]
    fits_schema: NDArray[np.bool_]


def judge_calls(calls: pa.Table, tools: pa.ChunkedArray) -> CallVerdicts:
    """`calls` has `row`, `name` and `arguments`; `tools` is the file's column of schema lists as
    JSON text, one per trajectory.

    Raises DataError where such a text is no JSON list of function schemas, or a schema is none: no
    call could be judged by it.
    """
    encoded = tools.combine_chunks().dictionary_encode()
    offers = [_schemas_by_name(text or "[]") for text in encoded.dictionary.to_pylist()]
    offer_of_call = encoded.indices.fill_null(0).to_numpy(zero_copy_only=False)[calls["row"].to_numpy()]
    verdicts = np.ones((calls.num_rows, 3), bool)
    names, arguments = calls["name"].to_pylist(), calls["arguments"].to_pylist()
    for index in range(calls.num_rows):
        schema = offers[offer_of_call[index]].get(names[index])
        verdicts[index] = _judge(schema, arguments[index])
    return CallVerdicts(verdicts[:, 0], verdicts[:, 1], verdicts[:, 2])


@functools.lru_cache(maxsize=65536)
def _judge(schema: str | None, arguments: str) -> tuple[bool, bool, bool]:
    try:
        given = json.loads(arguments)
    except (ValueError, RecursionError):  # RecursionError: brackets nested past the interpreter's stack
        return schema is not None, False, True
    if not isinstance(given, dict):
        return schema is not None, False, True
    return schema is not None, True, schema is None or _fits(schema, given)


def _fits(schema: str, given: Mapping[str, Any]) -> bool:
    parameters, validator = _validator(schema)
    known = parameters.get("properties", {})
    if not parameters.get("additionalProperties", False) and any(name not in known for name in given):
        return False
    return bool(validator.is_valid(given))


@functools.lru_cache(maxsize=4096)
def _validator(schema: str) -> tuple[Mapping[str, Any], Any]:
    import jsonschema  # type: ignore[import-untyped]  # it comes with Great Expectations and is as slow to load

    parameters = json.loads(schema)
    try:
        jsonschema.Draft202012Validator.check_schema(parameters)
    except jsonschema.SchemaError as error:
        raise DataError(
            f"a tool's parameters are {schema[:120]}, which is no JSON Schema ({error.message}): mend the column tools"
        ) from error
    return parameters, jsonschema.Draft202012Validator(parameters)


@functools.lru_cache(maxsize=8192)
def _schemas_by_name(text: str) -> Mapping[str, str]:
    """The parameters' schema of each offered tool as canonical text, so that equal schemas share
    one validator."""
    try:
        return {
            tool["function"]["name"]: json.dumps(tool["function"].get("parameters") or {}, sort_keys=True)
            for tool in json.loads(text)
        }
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise DataError(
            f"the column tools holds {text[:80]!r}, not a JSON list of function schemas: write it again from the source"
        ) from error
