"""The protocol of tool-call formats, and checks of JSON that a policy wrote."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

Schemas = Sequence[Mapping[str, Any]]  # OpenAI function schemas, in the order offered
# People nest five deep. Python's JSON readers and writers fail at a thousand, with its stack.
MAX_NESTING = 100
_BRACKET = re.compile(r"[\[\]{}]")
LONE_SURROGATES = re.compile("[\ud800-\udfff]")


class RawCall(NamedTuple):
    """A call: `arguments` are JSON, or the text that stands there instead."""

    name: str
    arguments: str


class ToolCallFormat(Protocol):
    """A model family's way to write calls. `name` is that of vLLM's `--tool-call-parser`;
    `markers` stand around calls, special tokens in some vocabularies; `calls` finds calls and
    what may stand around them."""

    name: str
    markers: tuple[str, ...]
    calls: re.Pattern[str]
    writes_objects: bool  # whether the chat template takes arguments as an object and writes the JSON itself

    def read(self, text: str, tools: Schemas, /) -> tuple[str, list[RawCall]]:
        """Content and calls of a message without its reasoning. Never raises."""

    def placeholder(self, key: str, rendered: str) -> str | None:
        """Arguments {key: key} as they stand in a template's output; None in another format."""

    def arguments(self, text: str, like: str, /) -> str:
        """`text` as it is to replace `like`, a placeholder."""


def is_nested_deep(text: str) -> bool:
    """True if more than MAX_NESTING brackets are open at one place, quoted ones included."""
    depth = 0
    for bracket in _BRACKET.finditer(text) if text.count("[") + text.count("{") > MAX_NESTING else ():
        depth += 1 if bracket[0] in "[{" else -1
        if depth > MAX_NESTING:
            return True
    return False


def join_content(pieces: Sequence[str]) -> str:
    """The texts around calls as content, a line each."""
    return "\n".join(stripped for piece in pieces if (stripped := piece.strip()))


def loads_or_none(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def dump_arguments(arguments: Any) -> str:
    """Compact JSON that UTF-8 can hold."""
    text = json.dumps(arguments, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return replace_lone_surrogates(text)


def replace_lone_surrogates(text: str) -> str:
    """� for half characters: valid in JSON's escapes, but UTF-8 has none."""
    return LONE_SURROGATES.sub("\N{REPLACEMENT CHARACTER}", text)
