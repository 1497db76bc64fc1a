"""Checks each tool call: the tool was offered, the arguments parse, and they fit its JSON schema.

Calls are judged by the schemas in the row itself, not by a world's code, so that imported
trajectories are judged by the same rule. An argument that the schema does not list is refused
although JSON Schema would let it pass: the tool could not take it. Each distinct call is judged
once.

A schema is untrusted, so it is judged within a bound on time, and nothing is fetched: each local
`$ref` is replaced by its target beforehand, up to `MAX_DEPTH` levels and `MAX_NODES` schemas
(`$ref`s that double at each level would make 2^levels of them), and `regex` searches patterns with
a time limit, because Python's `re` runs for years on `^(a+)+$`. What is left out passes: it says
nothing about the agent.
"""

import functools
import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import regex  # type: ignore[import-untyped]
from numpy.typing import NDArray

from posttrain.data.inline_tools import inline_tool_names
from posttrain.worlds.tools import json_object

_SHORT_CHARS = 1024  # arguments up to this length are cached with their verdict
MAX_DEPTH, MAX_NODES = 24, 10_000
PATTERN_TIMEOUT_S = 0.2  # per search; an ordinary pattern takes microseconds
# Left out: keywords that choose another validator or another base of `$ref`s, search with `re`, or
# compare all pairs of entries.
_NOT_JUDGED = ("$schema", "$id", "$dynamicRef", "uniqueItems", "unevaluatedItems", "unevaluatedProperties")
_VALUES = ("enum", "const", "default", "examples")  # keywords that hold values, not schemas
_TOO_SLOW: set[str] = set()  # patterns that timed out; they are ignored then


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
    # BFCL describes further tools in the middle of a conversation
    for index in np.flatnonzero(~verdicts[:, 0]).tolist():
        messages = rows["messages"][row_of_call[index]].as_py()
        asked = (message["content"] or "" for message in messages if message["role"] == "user")
        verdicts[index, 0] = any(names[index] in inline_tool_names(text) for text in asked)
    return has_schemas, dict(zip(("is_offered", "arguments_parse", "arguments_fit"), verdicts.T, strict=True))


def is_schema(text: str) -> bool:
    """True if `text` is a JSON schema for a tool's arguments."""
    return _validator(text) is not None


def fits(text: str, given: Mapping[str, Any]) -> bool:
    """True if the arguments fit the schema, or cannot be judged by it. An argument that the schema
    does not list does not fit, unless additionalProperties or patternProperties allow it. Raises
    ValueError where `is_schema` is False."""
    validator = _validator(text)
    if validator is None:
        raise ValueError(f"{text[:80]!r} is no JSON schema")
    parameters = json.loads(text)
    is_open = parameters.get("additionalProperties", False) or "patternProperties" in parameters
    if not is_open and any(name not in parameters.get("properties", {}) for name in given):
        return False
    try:
        return bool(validator.is_valid(given))
    except (RecursionError, ArithmeticError):
        return True


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


@functools.lru_cache(maxsize=4096)
def _validator(text: str) -> Any:
    """None where the text is no schema."""
    import jsonschema  # type: ignore[import-untyped]  # it comes with Great Expectations and is as slow to load

    plain = jsonschema.Draft202012Validator
    try:
        parameters = json.loads(text)
        if not isinstance(parameters, dict) or not isinstance(parameters.get("properties", {}), dict):
            return None
        plain.check_schema(parameters, format_checker=jsonschema.FormatChecker(formats=()))
    except (ValueError, RecursionError, jsonschema.SchemaError):
        return None
    closed = _closed(parameters, parameters, 0, iter(range(MAX_NODES)))
    return jsonschema.validators.extend(plain, {"pattern": _pattern})(closed)


def _closed(node: Any, root: Any, depth: int, budget: Iterator[int]) -> Any:
    """A schema without `$ref`s and without `_NOT_JUDGED`; {}, which everything fits, where it leads
    too deep or out of `root`, or where the budget is used up."""
    if isinstance(node, list):
        return [_closed(inner, root, depth, budget) for inner in node]
    if not isinstance(node, dict):
        return node
    if depth > MAX_DEPTH or next(budget, None) is None:
        return {}
    left_out = {*_NOT_JUDGED, "$ref", "$defs", "definitions"}
    if "patternProperties" in node:  # it may allow the names that additionalProperties refuses
        left_out |= {"patternProperties", "additionalProperties"}
    closed: dict[str, Any] = {}
    for key, value in node.items():
        if key in ("properties", "dependentSchemas"):  # whose keys are names, `$ref` as well
            closed[key] = {name: _closed(inner, root, depth + 1, budget) for name, inner in value.items()}
        elif key not in left_out:
            closed[key] = value if key in _VALUES else _closed(value, root, depth + 1, budget)
    if isinstance(reference := node.get("$ref"), str):
        closed["allOf"] = [*closed.get("allOf", ()), _closed(_target(root, reference), root, depth + 1, budget)]
    return closed


def _target(root: Any, reference: str) -> Any:
    """The schema at a JSON pointer such as `#/$defs/day`; {} where there is none, or in another
    document."""
    found = root
    for part in reference.removeprefix("#").split("/")[1:] if reference.startswith("#") else [""]:
        found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
    return {} if found is None else found


def _pattern(_: Any, pattern: str, instance: Any, __: Any) -> Iterator[Any]:
    import jsonschema

    if isinstance(instance, str) and pattern not in _TOO_SLOW:
        try:
            if regex.search(pattern, instance, timeout=PATTERN_TIMEOUT_S) is None:
                yield jsonschema.ValidationError("pattern")
        except TimeoutError:
            _TOO_SLOW.add(pattern)
        except (regex.error, RecursionError, MemoryError, OverflowError, ValueError):
            return  # it does not compile
