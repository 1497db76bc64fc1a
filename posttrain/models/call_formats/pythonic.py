"""`[f(a='b'), g(n=1)]`, calls as Python writes them, in `<|tool_call_start|>…<|tool_call_end|>`
(LFM2) or bare (Llama 4, ToolACE).

Templates of this form put quotes around a text and escape nothing in it, so what holds a quote or a
line's end could not be read back: here such a text is escaped, and any other written as they do.
"""

import ast
import json
import re
from collections.abc import Mapping
from typing import Any

from posttrain.models.call_formats.format import Schemas, Written, is_nested_deep, joined, loads, storable

_START, _END = "<|tool_call_start|>", "<|tool_call_end|>"
_MARKED = re.compile(r"<\|tool_call_start\|>(.*?)(?:<\|tool_call_end\|>|\Z)", re.DOTALL)
_BARE = re.compile(r"\A\s*\[\s*[A-Za-z_][\w.]*\(.*\Z", re.DOTALL)
_ONE = re.compile(r"\[?\s*([A-Za-z_][\w.]*)\s*\((.*?)\)?\s*\]?\s*\Z", re.DOTALL)
_CONSTANTS = {"true": True, "false": False, "null": None}  # JSON's, which models write as well


class Pythonic:
    name = "pythonic"
    marks: tuple[str, ...] = (_START, _END)
    calls = re.compile(
        r"\s*<\|tool_call_start\|>.*?(?:<\|tool_call_end\|>|\Z)\s*|\A\s*\[\s*[A-Za-z_][\w.]*\(.*\Z", re.DOTALL
    )
    writes_objects = False

    def read(self, said: str, _tools: Schemas, /) -> tuple[str, list[Written]]:
        """As `ToolCallFormat`."""
        if _START in said:
            written = [call for found in _MARKED.finditer(said) for call in _read(found[1])]
            return joined(_MARKED.split(said)[::2]), written
        return ("", _read(said)) if _BARE.match(said) else (said.strip(), [])

    def stand_in(self, key: str, rendered: str) -> str | None:
        """As `ToolCallFormat`."""
        return next((written for quote in "'\"" if f"({(written := f'{key}={quote}{key}{quote}')})" in rendered), None)

    def arguments(self, text: str, like: str, /) -> str:
        """`a='b', n=1` for the object `text`, with the quotes of `like`; another text as it is."""
        content = None if is_nested_deep(text) else loads(text)
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


def _read(text: str) -> list[Written]:
    """Calls of a list; text that Python cannot read is one, its name as far as it can be read."""
    try:
        if is_nested_deep(text):
            raise ValueError("too deep")
        tree = ast.parse(text.strip(), mode="eval").body
        return [_call(one) for one in (tree.elts if isinstance(tree, ast.List) else [tree])]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        one = _ONE.match(text.strip())
        return [Written(one[1], one[2].strip() or text.strip()) if one else Written("", text.strip())]


def _call(node: ast.expr) -> Written:
    if not isinstance(node, ast.Call) or node.args or any(one.arg is None for one in node.keywords):
        raise ValueError("not a call by keywords")
    arguments = {str(one.arg): _value(one.value) for one in node.keywords}
    text = json.dumps(arguments, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return Written(ast.unparse(node.func), storable(text))


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
