"""Converts the tools of a record to OpenAI's function schemas, and infers schemas from calls where
a file has none.

Understood are OpenAI's own (kept as they are), bare functions (`functions`, Hermes, BFCL),
Anthropic's and MCP's (`input_schema`, `inputSchema`), and xLAM's parameters, a table of arguments
with Python's names of types. An inferred schema lacks tools and optional arguments that no call
used, and its description says that it is inferred.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from posttrain.data.importing.fields import from_json, without_nulls
from posttrain.runtime.limits import MAX_SCHEMA_CHARS
from posttrain.types import Message
from posttrain.worlds.tools import json_object

_NAME = re.compile(r"[^\s<>{}|\"'`\\\x00-\x1f\x7f]{1,128}")  # nothing that a chat template gives a meaning
_TYPES: Mapping[str, str] = {
    **dict.fromkeys(("str", "string", "text", "char", "date", "datetime", "time", "enum", "url"), "string"),
    **dict.fromkeys(("int", "integer", "long"), "integer"),
    **dict.fromkeys(("float", "number", "double", "decimal"), "number"),
    **dict.fromkeys(("bool", "boolean"), "boolean"),
    **dict.fromkeys(("list", "array", "tuple", "set", "sequence", "arraylist"), "array"),
    **dict.fromkeys(("dict", "object", "mapping", "hashmap", "hashtable"), "object"),
    **dict.fromkeys(("null", "none", "nonetype"), "null"),
}
_PARAMETERS = ("parameters", "input_schema", "inputSchema")
_OTHER_PARAMETERS = ("arguments", "args", "args_schema", "schema", "params", "inputs", "input", "properties")
_INFERRED = "Inferred from recorded calls."
_JSON_TYPES: Mapping[type, str] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
    type(None): "null",
}
_SUBSCRIPT = re.compile(r"([A-Za-z]+)\s*\[\s*([A-Za-z]+)")


def read_tools(content: Any) -> tuple[Mapping[str, Any], ...] | None:
    """The schemas of a list of tools or its JSON text; None where the record has none. Raises
    ValueError for what is no tool, or KeyError with what one lacks."""
    listed = without_nulls(from_json(content or None, "tools"))
    if listed is None:
        return None
    if not isinstance(listed, list):
        raise ValueError("tools is no list of schemas")
    tools = tuple(_tool(tool) for tool in listed)
    names = [tool["function"]["name"] for tool in tools]
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise ValueError(f"it offers {twice[0]!r} twice")
    return tools


def infer_tools(conversations: Iterable[Sequence[Message]]) -> tuple[Mapping[str, Any], ...]:
    """OpenAI schemas of all called tools, ordered by name. An argument is required where every call
    gave it; types seen are listed where there were several.

    `f({"a": 1})` and `f({"a": 2.5, "b": "x"})` give `a` a number, required, and `b` a string,
    optional. Calls that do not parse are passed over.
    """
    seen: dict[str, list[Mapping[str, Any]]] = {}
    for call in (call for messages in conversations for message in messages for call in message.tool_calls):
        arguments = json_object(call.arguments)
        if arguments is not None and call.name:
            seen.setdefault(call.name, []).append(arguments)
    return tuple(_inferred(name, calls) for name, calls in sorted(seen.items()))


def is_inferred(tool: Mapping[str, Any]) -> bool:
    """True if a schema came from `infer_tools`."""
    return bool(tool["function"].get("description") == _INFERRED)


def _inferred(name: str, calls: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    names = dict.fromkeys(argument for arguments in calls for argument in arguments)
    values = {name: [arguments[name] for arguments in calls if name in arguments] for name in names}
    parameters = {
        "type": "object",
        "properties": {name: _type_of(seen) for name, seen in values.items()},
        "required": [name for name, seen in values.items() if len(seen) == len(calls)],
    }
    return _as_openai({"name": name, "description": _INFERRED, "parameters": parameters})


def _type_of(values: Sequence[Any]) -> dict[str, Any]:
    types = sorted({_JSON_TYPES[type(value)] for value in values})
    if "number" in types and "integer" in types:
        types.remove("integer")
    return {"type": types[0] if len(types) == 1 else types}


def _tool(tool: Any) -> Mapping[str, Any]:
    if not isinstance(tool, Mapping):
        raise ValueError(f"a tool is {type(tool).__name__}, not a schema")
    if "function" in tool or tool.get("type") == "function":
        function = tool["function"] if isinstance(tool.get("function"), Mapping) else _bare(tool, tool["name"])
        read: Mapping[str, Any] = tool if function is tool.get("function") else _as_openai(function)
    elif isinstance(tool.get("type"), str) and "name" not in tool:
        raise ValueError(f"a tool is of the type {tool['type'][:80]!r}; only functions can be offered")
    else:
        read = _as_openai(_bare(tool, tool["name"]))
    _refuse(read["function"])
    return read


def _as_openai(function: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"type": "function", "function": dict(function)}


def _bare(tool: Mapping[str, Any], name: Any) -> Mapping[str, Any]:
    given = next((tool[key] for key in _PARAMETERS if tool.get(key) is not None), None)
    if given is None and (others := [key for key in _OTHER_PARAMETERS if tool.get(key)]):
        raise ValueError(f"the tool {str(name)[:80]} has no parameters, but {others[0]}, which is not read")
    given = from_json({} if given is None else given, "the parameters of a tool")
    return {"name": name, "description": tool.get("description") or "", "parameters": _parameters(given)}


def _parameters(given: Any) -> Any:
    if not isinstance(given, Mapping):
        raise ValueError("a tool's parameters are no schema")
    is_schema = isinstance(given.get("properties"), Mapping) or given.get("type") in ("object", "dict")
    if is_schema or not all(isinstance(value, Mapping) for value in given.values()):
        return {"type": "object", "properties": {}, **json_schema(given)}
    properties = {name: json_schema(spec) for name, spec in given.items()}
    required = [name for name, spec in given.items() if not _is_optional(spec)]
    return {"type": "object", "properties": properties, "required": required}


def json_schema(node: Any) -> Any:
    """A schema with JSON's types for Python's or Java's: `{"type": "List[int]"}` gives an array of
    integers. An unknown type (`any`) is left out."""
    if isinstance(node, list):
        return [json_schema(inner) for inner in node]
    if not isinstance(node, Mapping):
        return node
    schema = {key: json_schema(value) if key in ("items", "anyOf") else value for key, value in node.items()}
    if isinstance(node.get("properties"), Mapping):
        schema["properties"] = {name: json_schema(inner) for name, inner in node["properties"].items()}
    if isinstance(schema.get("type"), str):
        schema |= _type(schema.pop("type"))
    schema.pop("optional", None)
    return schema


def _type(written: str) -> dict[str, Any]:
    name = written.split(",")[0].strip()
    inner = _SUBSCRIPT.match(name)
    outer = (inner[1] if inner else name).lower()
    if outer == "optional" and inner:
        return _type(inner[2])
    found = {"type": _TYPES[outer]} if outer in _TYPES else {}
    if found.get("type") == "array" and inner and inner[2].lower() in _TYPES:
        return {**found, "items": {"type": _TYPES[inner[2].lower()]}}
    return found


def _is_optional(spec: Mapping[str, Any]) -> bool:
    written = str(spec.get("type", "")).lower()
    return "optional" in written or "default" in spec or spec.get("required") is False


def _refuse(function: Mapping[str, Any]) -> None:
    name = function["name"]
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(
            f"a tool's name is {str(name)[:80]!r}: not 1 to 128 characters without spaces, quotes, <, >, |"
        )
    if not isinstance(function.get("parameters", {}), Mapping):
        raise ValueError(f"the parameters of {name} are no schema")
    if not isinstance(function.get("description") or "", str):
        raise ValueError(f"the description of {name} is not text")
    size = len(json.dumps(function, ensure_ascii=False, allow_nan=False).encode())  # also of what has no UTF-8
    if size > MAX_SCHEMA_CHARS:
        raise ValueError(f"the schema of {name} has {size} bytes, and {MAX_SCHEMA_CHARS} are the most")
