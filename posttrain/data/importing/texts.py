"""Texts of others that stand for values: JSON, Python's spelling of it, and halves of characters,
which stand for nothing."""

import ast
import json
import re
from typing import Any

_MAX_LITERAL_CHARS = 200_000  # of Python's spelling: its parser takes a kilobyte for each bracket


def from_json(content: Any, what: str) -> Any:
    """`content`, or what it is the JSON text of: tables of text have lists so. Raises ValueError
    that names it."""
    if not isinstance(content, str):
        return content
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{what} is text and no JSON: {content[:80]!r}") from error


def read_literal(written: str) -> Any:
    """JSON, or Python's spelling of it. Raises ValueError."""
    try:
        return json.loads(written)
    except (ValueError, RecursionError) as error:
        if len(written) > _MAX_LITERAL_CHARS:
            raise ValueError(f"neither JSON nor short enough to be Python's: {written[:80]!r}") from error
    try:
        return ast.literal_eval(written)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as error:
        raise ValueError(f"neither JSON nor Python's spelling of it: {written[:80]!r}") from error


def refuse_halves(text: str) -> None:
    """Raises ValueError where half of a surrogate pair stands alone."""
    if not text.isascii() and (found := re.search("[\ud800-\udfff]", text)):
        raise ValueError(f"half of a character (U+{ord(found[0]):04X}) stands alone in a text")
