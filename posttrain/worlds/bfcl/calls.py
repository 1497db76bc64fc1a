"""Calls of the package's functions, read from gold text or from what an agent wrote; never
evaluated.

The package writes an agent's arguments as Python source, puts the name of an instance before every
function's name followed by a bracket, within texts too, and evaluates the line. `as_evaluated` has
the same effect on the arguments without evaluating anything: `{"content": "Budget (2024)"}` becomes
`Budget(2024)`, and a text that names a function with its bracket, `ls()`, can never equal the
gold's, because the agent's instance and the gold's have different names. `instances` are these
names by function: `{"ls": "agent_eval_multi_turn_base_0_GorillaFileSystem_instance"}`.
"""

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

_NAME_BEFORE_BRACKET = re.compile(r"\b([a-zA-Z_]\w*)\s*(?=\()")


@dataclass(frozen=True, slots=True)
class Call:
    """A function by its name and its arguments; `values` are those that gold text gives without a
    name."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    values: Sequence[Any] = ()


def read_gold(text: str, instances: Mapping[str, str] = MappingProxyType({})) -> Call:
    """The call that a line of gold text makes: `sort('a.txt')`, `cd(folder='temp')`; with
    `instances`, as the package evaluates it. Raises ValueError where the line is no call of plain
    values."""
    tree = ast.parse(_with_instances(text, instances) if instances else text, mode="eval").body
    if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Name | ast.Attribute):
        raise ValueError(f"{text!r} is no call; the package's gold is another than the one known here")
    name = tree.func.id if isinstance(tree.func, ast.Name) else tree.func.attr
    arguments = {word.arg: ast.literal_eval(word.value) for word in tree.keywords if word.arg is not None}
    return Call(name, arguments, tuple(ast.literal_eval(value) for value in tree.args))


def as_evaluated(call: Call, instances: Mapping[str, str]) -> Call:
    """An agent's call with the arguments that the package's evaluation would have passed. Raises
    ValueError where evaluation would have failed: a NaN, an argument's name that is none."""
    if wrong := [name for name in call.arguments if not name.isidentifier()]:
        raise ValueError(f"invalid syntax: the argument {wrong[0]!r}")
    return Call(call.name, {key: _evaluated(value, instances) for key, value in call.arguments.items()})


def _evaluated(value: Any, instances: Mapping[str, str]) -> Any:
    try:
        return ast.literal_eval(_with_instances(repr(value), instances))
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"invalid syntax: {error}") from error


def _with_instances(source: str, instances: Mapping[str, str]) -> str:
    return _NAME_BEFORE_BRACKET.sub(
        lambda found: f"{instances[found[1]]}.{found[1]}" if found[1] in instances else found[1], source
    )
