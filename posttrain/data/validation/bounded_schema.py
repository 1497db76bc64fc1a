"""Validates arguments by an untrusted JSON schema within a bound on time, and fetches nothing.

`regex` searches patterns with a time limit (Python's `re` runs for years on `^(a+)+$`). Every
evaluated keyword counts as a step, because `$ref`s that double at each level make 2^levels of them.
No `$ref` is fetched. What the bound leaves unjudged passes: it says nothing about the agent.

jsonschema-rs was tried (0.61): its `backtrack_limit` bounds patterns, but nothing bounds `$ref`s
(30 doubling levels take 38 s, each further one twice as long), and it rejects a whole schema for
one pattern that does not compile.
"""

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import regex  # type: ignore[import-untyped]
from referencing.exceptions import Unresolvable

MAX_STEPS = 100_000  # per call: keywords, and entries of lists in them
MAX_PATTERN_CHARS = 2_000
PATTERN_TIMEOUT_S = 0.2  # per search; an ordinary pattern takes microseconds
_TOO_SLOW: set[str] = set()  # patterns that timed out; they are ignored then

Keyword = Callable[[Any, Any, Any, Any], Any]


class _TooMuchWork(Exception):
    """Raised when the step budget is used up."""


class _Steps:
    def __init__(self) -> None:
        self.num_left = 0

    def take(self, number: int) -> None:
        self.num_left -= number
        if self.num_left < 0:
            raise _TooMuchWork


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
    parameters = validator.schema
    is_open = parameters.get("additionalProperties", False) or "patternProperties" in parameters
    if not is_open and any(name not in parameters.get("properties", {}) for name in given):
        return False
    _, steps = _bounded_validator()
    steps.num_left = MAX_STEPS
    try:
        return bool(validator.is_valid(given))
    except (_TooMuchWork, Unresolvable, RecursionError, ArithmeticError):
        return True


@functools.lru_cache(maxsize=4096)
def _validator(text: str) -> Any:
    """None where the text is no schema."""
    import jsonschema  # type: ignore[import-untyped]  # it comes with Great Expectations and is as slow to load
    import referencing

    bounded, _ = _bounded_validator()
    try:
        parameters = _without_dialects(json.loads(text))
        if not isinstance(parameters, dict) or not isinstance(parameters.get("properties", {}), dict):
            return None
        jsonschema.Draft202012Validator.check_schema(parameters, format_checker=jsonschema.FormatChecker(formats=()))
        return bounded(parameters, registry=referencing.Registry())
    except (ValueError, RecursionError, jsonschema.SchemaError):
        return None


def _without_dialects(schema: Any) -> Any:
    """The schema without `$schema`, which would choose a validator without bounds, and without
    `$id`, the base of `$ref`s."""
    if isinstance(schema, dict):
        return {
            key: _without_dialects(value)
            for key, value in schema.items()
            if not (key in ("$schema", "$id") and isinstance(value, str))
        }
    return [_without_dialects(value) for value in schema] if isinstance(schema, list) else schema


@functools.cache
def _bounded_validator() -> tuple[Any, _Steps]:
    import jsonschema

    steps = _Steps()
    plain = jsonschema.Draft202012Validator
    own: dict[str, Keyword] = {
        "pattern": _pattern,
        "uniqueItems": _unique_items,
        "additionalProperties": _additional_properties(plain.VALIDATORS["additionalProperties"]),
        **dict.fromkeys(("patternProperties", "unevaluatedItems", "unevaluatedProperties"), _passed_over),
    }
    counted = {name: _counted(check, steps) for name, check in {**plain.VALIDATORS, **own}.items()}
    return jsonschema.validators.extend(plain, counted), steps


def _counted(check: Keyword, steps: _Steps) -> Keyword:
    def judge(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        steps.take(1 + (len(value) if isinstance(value, (list, dict)) else 0))
        if check is _unique_items and isinstance(instance, list):
            steps.take(len(instance))
        return check(validator, value, instance, schema)

    return judge


def _pattern(_: Any, pattern: Any, instance: Any, __: Any) -> Iterator[Any]:
    if isinstance(instance, str) and not _matches(pattern, instance):
        yield _error("pattern")


def _unique_items(_: Any, is_unique: Any, instance: Any, __: Any) -> Iterator[Any]:
    if is_unique and isinstance(instance, list):
        texts = [json.dumps(item, sort_keys=True) for item in instance]
        if len(set(texts)) < len(texts):
            yield _error("uniqueItems")


def _additional_properties(plain: Keyword) -> Keyword:
    """The standard check, skipped where patternProperties, which is not evaluated, allows names."""
    return lambda validator, value, instance, schema: (
        () if "patternProperties" in schema else plain(validator, value, instance, schema)
    )


def _passed_over(*_: Any) -> tuple[()]:
    return ()


def _error(keyword: str) -> Any:
    import jsonschema

    return jsonschema.ValidationError(keyword)


def _matches(pattern: Any, text: str) -> bool:
    """Search with a time limit; True where the pattern does not compile or once took too long."""
    compiled = _compiled(pattern)
    if compiled is None or pattern in _TOO_SLOW:
        return True
    try:
        return compiled.search(text, timeout=PATTERN_TIMEOUT_S) is not None
    except TimeoutError:
        _TOO_SLOW.add(pattern)
        return True


@functools.lru_cache(maxsize=4096)
def _compiled(pattern: Any) -> Any:
    if not isinstance(pattern, str) or len(pattern) > MAX_PATTERN_CHARS:
        return None
    try:
        return regex.compile(pattern)
    except (regex.error, RecursionError, MemoryError, OverflowError, ValueError):
        return None
