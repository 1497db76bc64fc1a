"""The tools that a record says were offered, as OpenAI's function schemas.

Read are OpenAI's own, bare functions (`functions`, Hermes, BFCL), Anthropic's and MCP's
(`input_schema`, `inputSchema`), and xLAM's parameters, which are a table of arguments with Python's
names of types. What already is OpenAI's stays as it is.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from posttrain.data.importing.fields import without_nulls
from posttrain.data.importing.texts import from_json
from posttrain.runtime.limits import MAX_SCHEMA_CHARS

MAX_TOOLS = 4_096  # of one record
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
_SUBSCRIPT = re.compile(r"([A-Za-z]+)\s*\[\s*([A-Za-z]+)")


def read_tools(content: Any) -> tuple[Mapping[str, Any], ...] | None:
    """None where the record does not say. `content` is a list of tools or its JSON text. Raises
    ValueError with what is none, or KeyError with what it lacks."""
    listed = without_nulls(from_json(content or None, "tools"))
    if listed is None:
        return None
    if not isinstance(listed, list) or len(listed) > MAX_TOOLS:
        raise ValueError(f"tools is no list of at most {MAX_TOOLS} schemas")
    tools = tuple(_tool(tool) for tool in listed)
    names = [tool["function"]["name"] for tool in tools]
    if twice := sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []:
        raise ValueError(f"it offers {twice[0]!r} twice")
    return tools


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
    given = {} if given is None else given
    given = from_json(given, "the parameters of a tool")
    return {"name": name, "description": tool.get("description") or "", "parameters": _parameters(given)}


def _parameters(given: Any) -> Any:
    if not isinstance(given, Mapping):
        raise ValueError("a tool's parameters are no schema")
    is_schema = isinstance(given.get("properties"), Mapping) or given.get("type") in ("object", "dict")
    if is_schema or not all(isinstance(value, Mapping) for value in given.values()):
        schema = json_schema(given)
        return {"type": "object", "properties": {}, **schema}
    properties = {name: json_schema(spec) for name, spec in given.items()}
    required = [name for name, spec in given.items() if not _is_optional(spec)]
    return {"type": "object", "properties": properties, "required": required}


def json_schema(node: Any) -> Any:
    """A schema whose types may be Python's or Java's: `{"type": "List[int]"}` gives an array of
    integers; a type that is unknown (`any`) is left out."""
    if isinstance(node, list):
        return [json_schema(inner) for inner in node]
    if not isinstance(node, Mapping):
        return node
    schema = {
        key: json_schema(value) if key in ("properties", "items", "anyOf") else value for key, value in node.items()
    }
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
