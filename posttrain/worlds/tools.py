"""Tools: plain Python functions whose type hints and docstring become the JSON schema that an agent
reads.

The first paragraph of the docstring is the tool's description; one line `name: text` for each
parameter under `Args:` describes it. Both are prompt text, so they are golden-tested. A parameter
with a default is optional. Accepted hints: str, int, float, bool, Literal of strings, list of
those.
"""

import contextlib
import inspect
import json
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, Union, cast

from posttrain.types import BadNumber, JsonValue, number

SideEffect: TypeAlias = Literal["none", "reversible", "irreversible"]
_JSON_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean"}


class ToolError(Exception):
    """The agent's mistake (unknown code, bad arguments), which it reads and can put right."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A callable with the schema that describes it.

    `is_instant`: it only computes, so it is called in place, in the order of the calls; any other
    runs beside the others, in a thread or as a coroutine, and is given up after a time.
    `ends_episode`: its first good result is the end. `side_effect`: with `none` it only reads, so
    to repeat a call is a fault; `irreversible` wants the user's consent (`grading.py`).
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    function: Callable[..., Any]
    is_instant: bool = False
    ends_episode: bool = False
    side_effect: SideEffect = "reversible"

    @property
    def is_read_only(self) -> bool:
        return self.side_effect == "none"

    def schema(self) -> dict[str, Any]:
        """OpenAI's function schema."""
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": dict(self.parameters)},
        }

    def call(self, arguments: str) -> str:
        """The result as compact JSON text. Raises ToolError."""
        return result_text(self.function(**self.parse(arguments)))

    def parse(self, arguments: str) -> dict[str, Any]:
        """The arguments as the function takes them; a number in quotes is a number. Raises
        ToolError. Objects, unions and references of a schema are left to the function to judge."""
        try:
            given = json.loads(arguments, parse_constant=refuse_constant) if arguments.strip() else {}
        except json.JSONDecodeError as error:
            raise ToolError(f"arguments are not valid JSON: {error.msg} at character {error.pos}") from error
        except (ValueError, RecursionError) as error:  # an integer of thousands of digits, brackets in brackets
            raise ToolError("arguments hold NaN, a number too long or brackets too deep to read") from error
        if not isinstance(given, dict):
            raise ToolError(f"arguments must be a JSON object, not {type(given).__name__}")
        properties: Mapping[str, Any] = self.parameters.get("properties", {})
        unknown = sorted(set(given) - set(properties))
        if unknown and not self.parameters.get("additionalProperties"):
            raise ToolError(f"unknown argument {unknown[0]!r}; {self.name} takes {', '.join(properties) or 'none'}")
        if missing := [name for name in self.parameters.get("required", ()) if name not in given]:
            raise ToolError(f"missing argument {missing[0]!r}")
        return {name: _fit(name, value, properties.get(name, {})) for name, value in given.items()}


def tool_from(
    function: Callable[..., Any],
    *,
    name: str | None = None,
    is_instant: bool = False,
    ends_episode: bool = False,
    side_effect: SideEffect = "reversible",
) -> Tool:
    """Derives the schema of a function. Raises TypeError where a hint is missing or not known."""
    # JsonValue names itself and two others as text; they are resolved here, so that a module of
    # tools need not import them.
    hints = typing.get_type_hints(function, localns={"JsonValue": JsonValue, "Mapping": Mapping, "Sequence": Sequence})
    description, argument_texts = _read_docstring(function)
    properties: dict[str, Any] = {}
    required: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name not in hints:
            raise TypeError(
                f"{function.__name__}: parameter {parameter.name!r} has no type hint, "
                "so the agent cannot know what to pass"
            )
        properties[parameter.name] = _hint_schema(hints[parameter.name])
        if text := argument_texts.get(parameter.name):
            properties[parameter.name]["description"] = text
        if parameter.default is inspect.Parameter.empty:
            required.append(parameter.name)
    parameters = {"type": "object", "properties": properties, "required": required}
    return Tool(name or function.__name__, description, parameters, function, is_instant, ends_episode, side_effect)


def json_object(arguments: str) -> dict[str, Any] | None:
    """A call's arguments as they stand; None where the text is no JSON object, which makes the call
    malformed. No text is the empty object: servers write so where a tool has no parameters."""
    try:
        content = json.loads(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def json_or_text(text: str) -> JsonValue:
    """The object or list that a text holds, or else the text: `007` would not stay as a number."""
    try:
        parsed: JsonValue = json.loads(text, parse_constant=refuse_constant)
    except (ValueError, RecursionError):
        return text
    return parsed if isinstance(parsed, dict | list) else text


def result_text(result: Any) -> str:
    """The result as compact JSON. Raises TypeError or ValueError where it is none: a bug."""
    return json.dumps(result, ensure_ascii=False, separators=(",", ":"))


def error_text(error: ToolError) -> str:
    """The tool message that an agent reads after a mistake."""
    return json.dumps({"error": str(error)}, ensure_ascii=False, separators=(",", ":"))


def is_error(content: str) -> bool:
    """True for a tool message that `error_text` wrote."""
    return content.startswith('{"error":')


def refuse_constant(name: str) -> Any:
    """For `json.loads`, which would take NaN and Infinity."""
    raise ValueError(f"{name} is no JSON")


def _hint_schema(hint: Any) -> dict[str, Any]:
    origin = typing.get_origin(hint)
    if origin in (Union, types.UnionType):
        members = [member for member in typing.get_args(hint) if member is not type(None)]
        if len(members) == 1:
            return _hint_schema(members[0])
    if origin is Literal:
        return {"type": "string", "enum": list(typing.get_args(hint))}
    if origin is list:
        return {"type": "array", "items": _hint_schema(typing.get_args(hint)[0])}
    if hint in _JSON_TYPES:
        return {"type": _JSON_TYPES[hint]}
    raise TypeError(
        f"a tool's parameter cannot have the type {hint!r}; use str, int, float, bool, "
        "Literal of strings or a list of those"
    )


def _read_docstring(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    head, _, arguments = inspect.cleandoc(function.__doc__ or "").partition("\nArgs:\n")
    if not head:
        raise TypeError(f"{function.__name__} has no docstring, so the agent cannot know what it does")
    found = re.findall(r"^\s+(\w+): (.+)$", arguments, flags=re.MULTILINE)
    return " ".join(head.split("\n\n")[0].split()), dict(found)


def _fit(name: str, value: Any, schema: Any) -> Any:
    match schema.get("type") if isinstance(schema, Mapping) else None:  # true is a schema, too
        case "string" if isinstance(value, str):
            if "enum" in schema and value not in schema["enum"]:
                known = ", ".join(map(str, schema["enum"]))
                raise ToolError(f"argument {name!r} is {value!r}; it must be one of {known}")
            return value
        case "integer" if (read := _number(value)) is not None and float(read).is_integer():
            return int(read)
        case "number" if (read := _number(value)) is not None:
            return float(read)
        case "boolean" if isinstance(value, bool):
            return value
        case "array" if isinstance(value, list):
            return [_fit(name, item, schema.get("items", {})) for item in value]
        case "object" if isinstance(value, dict):
            return value
        case None | list():
            return value
    raise ToolError(
        f"argument {name!r} is {json.dumps(value, ensure_ascii=False)}; it must be of type {schema['type']}"
    )


def _number(value: Any) -> int | float | None:
    """The number, also one in quotes; None for anything else and for what no float holds."""
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,300}(\.\d+)?", value):
        value = float(value) if "." in value else int(value)
    if isinstance(value, bool):
        return None
    with contextlib.suppress(BadNumber):
        number(value, "an argument", low=-sys.float_info.max, high=sys.float_info.max)
        return cast("int | float", value)
    return None
