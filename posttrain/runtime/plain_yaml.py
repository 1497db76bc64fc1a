"""The one reader of YAML files: safe, bounded, and with every number and key as a person reads it.

PyYAML reads YAML 1.1, in which `010` is 8 (octal), `1:30` is 90 (base 60) and of two equal keys the
last one counts, all without a word: the knob that a person edited would be another one. A file may
be anyone's: forty lines of aliases can stand for more than any memory holds, and brackets within
brackets end libyaml's composer with a segmentation fault. So its events are counted first.
"""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from posttrain.runtime.control_chars import escape_control_chars
from posttrain.runtime.exits import ConfigurationError, Problem

MAX_BYTES = 2**24  # of a file
MAX_DEPTH = 100  # of values within values
MAX_VALUES = 100_000  # in a file, aliases written out
NOT_DECIMAL, TWICE = "not_decimal", "twice"  # kinds of problems
MAX_NUMBER_CHARS = 100  # Python refuses to write an integer of 4,301 digits
_PLAIN_NUMBER = re.compile(
    r"[-+]?(0|[1-9][0-9]*)"
    r"|[-+]?([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+][0-9]+)?"
    r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
)
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_WORDS = ("tag:yaml.org,2002:str", "tag:yaml.org,2002:null", "tag:yaml.org,2002:bool")
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # eight times as fast, where PyYAML was built with libyaml


def read_yaml(path: Path, *, source: str = "", has_plain_numbers: bool = False) -> Any:
    """The content of a file, which messages call `source` (its path by default). Raises
    ConfigurationError."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(f"{source or path} cannot be read ({error.strerror})") from error
    return load_yaml(content, source or str(path), has_plain_numbers=has_plain_numbers)


def load_yaml(text: str | bytes, source: str, *, has_plain_numbers: bool = False) -> Any:
    """The content; `has_plain_numbers`: a number in another notation is refused too. Raises
    ConfigurationError with the source, the line and what is wrong there."""
    try:
        content, problems = read_plain(text)
    except ValueError as error:
        raise ConfigurationError(f"{source} cannot be read as YAML: {error}") from error
    if refused := [one for one in problems if has_plain_numbers or one.kind == TWICE]:
        raise ConfigurationError(f"{source}: {escape_control_chars(str(refused[0]))}", problems=refused)
    return content


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
def read_plain(text: str | bytes) -> tuple[Any, list[Problem]]:
    """The content as PyYAML reads it, and a problem for each number in another notation and each
    key that stands twice. Raises ValueError with the line where the text is no YAML or beyond a
    bound."""
    text = text if isinstance(text, str) else text.decode("utf-8-sig")
    if len(text) > MAX_BYTES:
        raise ValueError(f"it is longer than {MAX_BYTES:,} bytes")
    check_bounds(text)
    loader = _LOADER(text)
    if (node := loader.get_single_node()) is None:
        return None, []
    problems = list(_problems(loader, node))  # first: construction writes merged keys (`<<`) into the nodes
    return loader.construct_document(node), problems


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


def _problems(loader: Any, root: yaml.Node) -> Iterator[Problem]:
    """Odd numbers and double keys, in the order of the file."""
    waiting: list[tuple[str, yaml.Node]] = [("", root)]
    seen: set[int] = set()  # an alias is the node that it names
    while waiting:
        key, node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        match node:
            case yaml.MappingNode():
                yield from _twice(key, node)
                named = [
                    (name.value if isinstance(name, yaml.ScalarNode) else "?", value) for name, value in node.value
                ]
                waiting += reversed([(_joined(key, name), value) for name, value in named])
            case yaml.SequenceNode():
                waiting += reversed([(_joined(key, index), value) for index, value in enumerate(node.value)])
            case yaml.ScalarNode() if node.tag not in _WORDS:
                read = _value(loader, key, node)
                if node.tag in _NUMBERS and not _PLAIN_NUMBER.fullmatch(node.value):
                    remedy = f"Write a number in plain decimal digits ({read}, if that is meant), and a text in quotes"
                    yield Problem(key, NOT_DECIMAL, f"YAML reads this as {read}", remedy, node.value)


def _value(loader: Any, key: str, node: yaml.ScalarNode) -> Any:
    """Raises ValueError of a number that is too long, and of a day that is none (2024-13-45)."""
    line = node.start_mark.line + 1
    if node.tag in _NUMBERS and len(node.value) > MAX_NUMBER_CHARS:
        raise ValueError(f"line {line}: {key} is a number of {len(node.value):,} characters")
    try:
        return loader.construct_object(node)
    except (ValueError, ArithmeticError) as error:
        raise ValueError(
            f"line {line}: {key} = {escape_control_chars(node.value[:MAX_NUMBER_CHARS])}: {error}"
        ) from error


def _twice(section: str, node: yaml.MappingNode) -> Iterator[Problem]:
    """A problem for each key that stands twice, with both lines, counted from 1."""
    lines: dict[tuple[str, str], int] = {}
    for name, _ in node.value:
        if not isinstance(name, yaml.ScalarNode):
            continue
        key, line = (name.tag, name.value), name.start_mark.line + 1
        if key in lines:
            reason = f"the key {name.value!r} stands twice, in lines {lines[key]} and {line}"
            yield Problem(_joined(section, name.value), TWICE, f"{reason}, and only the last would count", "Remove one")
        lines[key] = line


def _joined(key: str, part: object) -> str:
    return f"{key}.{part}" if key else f"{part}"
