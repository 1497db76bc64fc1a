"""Pythonic calls, `[f(a='b'), g(n=1)]`, between `<|tool_call_start|>` and `<|tool_call_end|>`
(LFM2) or bare (Llama 4, ToolACE). Templates quote a text without escaping it; one that could not
be parsed back is escaped here."""

import ast
import re
from collections.abc import Mapping
from typing import Any

from posttrain.models.call_formats.format import (
    RawCall,
    Schemas,
    dump_arguments,
    is_nested_deep,
    join_content,
    loads_or_none,
)

_START, _END = "<|tool_call_start|>", "<|tool_call_end|>"
_MARKED = re.compile(r"<\|tool_call_start\|>(.*?)(?:<\|tool_call_end\|>|\Z)", re.DOTALL)
_BARE = re.compile(r"\A\s*\[\s*[A-Za-z_][\w.]*\(.*\Z", re.DOTALL)
_ONE = re.compile(r"\[?\s*([A-Za-z_][\w.]*)\s*\((.*?)\)?\s*\]?\s*\Z", re.DOTALL)
_CONSTANTS = {"true": True, "false": False, "null": None}  # JSON's, which models write as well


class Pythonic:
    """A `ToolCallFormat`."""

    name = "pythonic"
    markers: tuple[str, ...] = (_START, _END)
    calls = re.compile(
        r"\s*<\|tool_call_start\|>.*?(?:<\|tool_call_end\|>|\Z)\s*|\A\s*\[\s*[A-Za-z_][\w.]*\(.*\Z", re.DOTALL
    )
    writes_objects = False

    def read(self, text: str, _tools: Schemas, /) -> tuple[str, list[RawCall]]:
        if _START in text:
            calls = [call for found in _MARKED.finditer(text) for call in _read(found[1])]
            return join_content(_MARKED.split(text)[::2]), calls
        return ("", _read(text)) if _BARE.match(text) else (text.strip(), [])

    def placeholder(self, key: str, rendered: str) -> str | None:
        return next((found for quote in "'\"" if f"({(found := f'{key}={quote}{key}{quote}')})" in rendered), None)

    def arguments(self, text: str, like: str, /) -> str:
        """`a='b', n=1` for the object `text`, quoted as `like`; other text as it is."""
        content = None if is_nested_deep(text) else loads_or_none(text)
        if not isinstance(content, dict) or not all(key.isidentifier() for key in content):
            return text
        return ", ".join(f"{key}={_literal(value, like[-1])}" for key, value in content.items())


def _literal(value: Any, quote: str) -> str:
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace(quote, "\\" + quote)
        return quote + "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in escaped) + quote
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_literal(key, quote)}: {_literal(one, quote)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_literal(one, quote) for one in value) + "]"
    return repr(value)


def _read(text: str) -> list[RawCall]:
    """Calls in a list; text that is no Python is one call, its name as far as it can be read."""
    try:
        if is_nested_deep(text):
            raise ValueError("too deep")
        tree = ast.parse(text.strip(), mode="eval").body
        return [_call(one) for one in (tree.elts if isinstance(tree, ast.List) else [tree])]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        one = _ONE.match(text.strip())
        return [RawCall(one[1], one[2].strip() or text.strip()) if one else RawCall("", text.strip())]


def _call(node: ast.expr) -> RawCall:
    if not isinstance(node, ast.Call) or node.args or any(one.arg is None for one in node.keywords):
        raise ValueError("not a call by keywords")
    arguments = {str(one.arg): _value(one.value) for one in node.keywords}
    return RawCall(ast.unparse(node.func), dump_arguments(arguments))


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=str() | bool() | int() | float() | None as value):
            return value
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.List(elts=members) | ast.Tuple(elts=members):
            return [_value(one) for one in members]
        case ast.Dict(keys=keys, values=values):
            return {_key(key): _value(value) for key, value in zip(keys, values, strict=True)}
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
    raise ValueError("not a literal")


def _key(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    raise ValueError("not a key of JSON")
