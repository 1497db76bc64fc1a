"""The one reader of YAML files: safe, bounded, and strict where a person means something else.

Of two equal keys PyYAML takes the last without a word: the knob that a person edited would be
another one. It reads `010` as 8 and `1:30` as 90, where DVC (YAML 1.2) reads 10 and a text. A
file may be anyone's: forty lines of aliases can stand for more than any memory holds, and brackets
in brackets end libyaml's composer with a segmentation fault. So its events are counted first.
"""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from posttrain.runtime.control_chars import escape_control_chars
from posttrain.runtime.exits import ConfigurationError

MAX_BYTES = 2**24  # of a file
MAX_DEPTH = 100  # of values within values
MAX_VALUES = 100_000  # in a file, aliases written out
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_OTHER_BASE = re.compile(r"[+-]?0[0-9_xb]|.*[:_]")  # octal, hexadecimal, binary, base 60, and 1_000
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # eight times as fast, where PyYAML was built with libyaml


def read_yaml(path: Path, *, source: str = "") -> Any:
    """The content of a file, which messages call `source` (its path by default). Raises
    ConfigurationError."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(f"{source or path} cannot be read ({error.strerror})") from error
    return load_yaml(content, source or str(path))


def load_yaml(text: str | bytes, source: str, *, only_decimal: bool = False) -> Any:
    """The content, as `read_plain` reads it. Raises ConfigurationError with the source, the line
    and what is wrong there."""
    try:
        return read_plain(text, only_decimal=only_decimal)
    except ValueError as error:
        raise ConfigurationError(f"{source} cannot be read as YAML: {error}") from error


@contextlib.contextmanager
def _said_in_a_sentence() -> Iterator[None]:
    """Raises errors of PyYAML as ValueErrors that begin with the line."""
    try:
        yield
    except (UnicodeDecodeError, UnicodeEncodeError) as error:
        raise ValueError(f"it is not UTF-8 text ({error.reason})") from error
    except yaml.YAMLError as error:
        if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
            raise ValueError(escape_control_chars(str(error))) from error
        said = escape_control_chars(", ".join(filter(None, [error.context, error.problem])))
        raise ValueError(f"line {error.problem_mark.line + 1}: {said}") from error


@_said_in_a_sentence()
def read_plain(text: str | bytes, *, only_decimal: bool = False) -> Any:
    """The content as PyYAML reads it. Raises ValueError with the line where the text is no YAML,
    beyond a bound, or has a key twice; with `only_decimal` also where a number is in another base
    than ten, which DVC reads otherwise (`010`)."""
    text = text if isinstance(text, str) else text.decode("utf-8-sig")
    if len(text) > MAX_BYTES:
        raise ValueError(f"it is longer than {MAX_BYTES:,} bytes")
    check_bounds(text)
    loader = _LOADER(text)
    if (node := loader.get_single_node()) is None:
        return None
    _refuse_ambiguous(node, only_decimal)  # first: construction writes merged keys (`<<`) into the nodes
    return loader.construct_document(node)


@_said_in_a_sentence()
def check_bounds(text: str, *, max_values: int = MAX_VALUES) -> None:
    """Raises ValueError where values stand too deep in each other or are too many, or the text is
    no YAML."""
    sizes: dict[str | None, int] = {}  # of what an alias stands for
    outer: list[tuple[str | None, int]] = []  # what the open values are called, and how many had come before
    total = 0
    event: Any
    for event in yaml.parse(text, _LOADER):
        line = event.start_mark.line + 1
        if isinstance(event, yaml.CollectionStartEvent):
            outer.append((event.anchor, total))
            total += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = outer.pop()
            if anchor is not None:
                sizes[anchor] = total - before
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor in (anchor for anchor, _ in outer):
                raise ValueError(f"line {line}: the alias *{event.anchor} stands for what it is a part of")
            total += sizes.get(event.anchor, 1)
        elif isinstance(event, yaml.ScalarEvent):
            total += 1
        if len(outer) > MAX_DEPTH:
            raise ValueError(f"line {line}: its values are nested too deep, more than {MAX_DEPTH} within each other")
        if total > max_values:
            raise ValueError(f"line {line}: it has more than {max_values:,} values, those of aliases counted each time")


def _refuse_ambiguous(node: yaml.Node, only_decimal: bool) -> None:
    """Raises ValueError for a key that stands twice in one mapping, with both lines, and for a
    number that YAML 1.1 reads in another base than ten."""
    if only_decimal and isinstance(node, yaml.ScalarNode) and node.tag in _NUMBERS and _OTHER_BASE.match(node.value):
        shown = escape_control_chars(node.value[:100])
        raise ValueError(
            f"line {node.start_mark.line + 1}: {shown} is no decimal number; write it in base ten, or in quotes"
        )
    if isinstance(node, yaml.SequenceNode):
        for value in node.value:
            _refuse_ambiguous(value, only_decimal)
    if not isinstance(node, yaml.MappingNode):
        return
    lines: dict[tuple[str, str], int] = {}
    for name, value in node.value:
        if isinstance(name, yaml.ScalarNode):
            key, line = (name.tag, name.value), name.start_mark.line + 1
            if key in lines:
                shown = escape_control_chars(name.value[:100])
                raise ValueError(f"line {line}: the key {shown!r} stands twice, first in line {lines[key]}")
            lines[key] = line
        _refuse_ambiguous(value, only_decimal)
