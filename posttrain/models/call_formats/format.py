"""What a form of calls is, and how JSON that a policy wrote is read without changing a character of
what can be told apart."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

Schemas = Sequence[Mapping[str, Any]]  # OpenAI function schemas, in the order offered
_DECODER = json.JSONDecoder()
MAX_NESTING = 100  # people nest five deep; Python's readers and writers of JSON end at a thousand, with its stack
_BRACKET = re.compile(r"[\[\]{}]")
LONE_SURROGATES = re.compile("[\ud800-\udfff]")


class Written(NamedTuple):
    """A call as it was written: `arguments` are JSON, or the text that stands there instead."""

    name: str
    arguments: str


class ToolCallFormat(Protocol):
    """One form. `name` is what vLLM's `--tool-call-parser` calls it; `marks` are the texts around
    calls that are the agent's to write, tokens of their own in some vocabularies; `calls` finds
    calls, and what may stand around them, in an agent's text."""

    name: str
    marks: tuple[str, ...]
    calls: re.Pattern[str]
    writes_objects: bool  # arguments are an object that the template itself writes as JSON

    def read(self, said: str, tools: Schemas, /) -> tuple[str, list[Written]]:
        """The content and the calls of what was said behind the reasoning; `tools` were offered.
        Never raises."""

    def stand_in(self, key: str, rendered: str) -> str | None:
        """How `rendered`, by a template, has the arguments {key: key}; None where it has them in
        another form."""

    def arguments(self, text: str, like: str, /) -> str:
        """What stands in the place of a stand-in for the arguments `text`; `like` is what
        `stand_in` found."""


def is_nested_deep(text: str) -> bool:
    """Whether more than MAX_NESTING brackets are open at one place, those in texts included."""
    depth = 0
    for bracket in _BRACKET.finditer(text) if text.count("[") + text.count("{") > MAX_NESTING else ():
        depth += 1 if bracket[0] in "[{" else -1
        if depth > MAX_NESTING:
            return True
    return False


def joined(pieces: Sequence[str]) -> str:
    """Text around calls, as content."""
    return "\n".join(stripped for piece in pieces if (stripped := piece.strip()))


class JsonCall:
    """Reads `{"name": …, KEY: {…}}`. The name as far as it can be read; the arguments exactly as
    written where they can be told apart, else the whole text."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._head = re.compile(rf'\s*\{{\s*"name"\s*:\s*"([^"\\]*)"\s*,\s*"{key}"\s*:')
        self._name = re.compile(r'"name"\s*:\s*"([^"\\]*)"')

    def read(self, text: str) -> Written:
        name, arguments = self._as_written(text)
        try:
            content = json.loads(text)
            if self._is_without(content):
                return Written(storable(content["name"]), "{}")
            if self.is_one(content):
                # keys in another order, further keys, escapes in the name
                if name != content["name"] or loads(arguments) != content[self._key]:
                    name = content["name"]
                    arguments = json.dumps(content[self._key], ensure_ascii=False, separators=(",", ":"))
                return Written(storable(name), storable(arguments))
        except (ValueError, RecursionError):  # also numbers of thousands of digits, nesting beyond Python's stack
            pass
        return Written(name, arguments)

    def is_one(self, content: Any) -> bool:
        """Whether a JSON value is a call."""
        return isinstance(content, Mapping) and isinstance(content.get("name"), str) and self._key in content

    def _is_without(self, content: Any) -> bool:
        """Whether it is a call that gives no arguments: none, null, or an empty text."""
        is_named = isinstance(content, Mapping) and isinstance(content.get("name"), str)
        return is_named and content.get(self._key) in (None, "") and set(content) <= {"name", "id", self._key}

    def _as_written(self, text: str) -> tuple[str, str]:
        """Name and arguments cut out without reading the JSON: what stands behind the key, its own
        closing brace not included. Nothing there is no call without arguments, so it is the whole
        text then."""
        if head := self._head.match(text):
            return head[1], text[head.end() :].strip().removesuffix("}").rstrip() or text.strip()
        name = self._name.search(text)
        return name[1] if name else "", text.strip()


class JsonForm:
    """What the forms have in common whose arguments are JSON: a subclass is a `ToolCallFormat`."""

    writes_objects = True
    sign: str  # what a call of this form has beside its arguments, and one of another has not

    def stand_in(self, key: str, rendered: str) -> str | None:
        """As `ToolCallFormat`."""
        written = json.dumps({key: key})
        return written if self.sign in rendered and written in rendered else None

    def arguments(self, text: str, _like: str, /) -> str:
        """As they are."""
        return text


def leading_values(text: str, behind: re.Pattern[str]) -> tuple[list[str], str]:
    """The texts of the JSON values at the beginning, each with what `behind` matches after it, and
    the rest, which is empty where all was read."""
    found: list[str] = []
    start = 0
    while start < len(text):  # by position: a copy of the rest for each value is quadratic in thousands of calls
        try:
            _, end = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            break
        if is_nested_deep(text[start:end]) or not (passed := behind.match(text, end)):
            break
        found.append(text[start:end])
        start = passed.end()
    return found, text[start:]


def loads(text: str) -> Any:
    """The JSON value; None where the text is none, which equals no arguments but `null`."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def storable(text: str) -> str:
    """Escapes of half characters are valid JSON but have no UTF-8."""
    return LONE_SURROGATES.sub("\N{REPLACEMENT CHARACTER}", text)
