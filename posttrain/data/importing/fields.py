"""Reads one object of an untrusted record: known keys by their meaning, and JSON that stands as
text.

A key is read, or it refuses the record, or the import reports it as unread; none is dropped in
silence. Null stands for an absent key in every kind of file, because Parquet and `datasets` give
each object the keys of all.
"""

import ast
import json
import re
from collections.abc import Mapping
from typing import Any, Literal

from posttrain.models.call_formats.format import LONE_SURROGATES

Level = Literal["record", "message", "call", "part"]

# The first spelling is OpenAI's or our own; the others are those of Anthropic, Gemini, Vercel's AI
# SDK, OpenTelemetry, LangChain, Cohere, ShareGPT, TRL, LLaMA-Factory, ms-swift and Axolotl.
SPELLINGS: Mapping[Level, Mapping[str, tuple[str, ...]]] = {
    "record": {
        "messages": ("messages", "conversations", "conversation"),
        "system": ("system", "system_prompt", "system_message", "system_instruction", "systemInstruction"),
        "tools": ("tools", "functions", "available_tools", "tool_definitions", "tool_schemas"),
        "success": ("success", "label", "kto_tag", "is_success", "is_correct", "passed", "resolved", "solved"),
        "reward": ("reward",),
        "chosen": ("chosen", "preferred_output", "chosen_response", "chosen_messages"),
        "rejected": ("rejected", "non_preferred_output", "rejected_response", "rejected_messages"),
    },
    "message": {
        "role": ("role", "from"),
        "content": ("content", "value", "parts", "text"),
        "reasoning": ("reasoning_content", "reasoning", "thinking", "thought"),
        "calls": ("tool_calls", "toolCalls", "function_calls", "function_call", "tool_call"),
        "call_id": ("tool_call_id", "toolCallId", "call_id", "tool_use_id"),
        "tool_name": ("name", "tool_name", "toolName"),
        "result": ("content", "value", "parts", "text", "output", "result", "response"),
        "weight": ("weight", "loss", "train", "training", "trainable", "loss_weight"),
        "refusal": ("refusal",),
    },
    "call": {
        "id": ("id", "tool_call_id", "toolCallId", "call_id", "tool_use_id"),
        "name": ("name", "tool_name", "toolName", "function_name", "function", "tool"),
        "arguments": ("arguments", "args", "parameters", "input", "params", "kwargs", "tool_input"),
    },
    "part": {
        "text": ("text", "value", "content", "thinking", "reasoning", "thought"),
        "call_id": ("tool_use_id", "tool_call_id", "toolCallId", "call_id", "id"),
        "tool_name": ("name", "tool_name", "toolName"),
        "result": ("content", "output", "result", "response", "value"),
    },
}
SCORES = ("score", "scores", "rewards", "return", "returns")  # of a record: rewards or marks of quality, nobody knows
_MASKS = r"(?:.*_)?(?:weights?|masks?|train|training|trainable)|loss|train_detail|input_ids"
_MEDIA = r"images?|videos?|audios?|files|attachments|experimental_attachments|objects"
# keys that change what an object means: unread, they refuse the record
_MEANINGFUL: Mapping[Level, re.Pattern[str]] = {
    "record": re.compile(
        rf"{_MASKS}|{_MEDIA}|{'|'.join(SCORES)}|history|chosen|chosen_.*(?:response|messages|output)|preference|winner"
        "|segments|tool_calls|function_call|tool_results?|messages|conversations?|label|kto_tag"
    ),
    "message": re.compile(
        rf"{_MASKS}|{_MEDIA}|recipient|channel|refusal|tools|functions|label|kto_tag|is_correct|chosen|rejected.*"
        "|toolInvocations|tool_results?|invalid_tool_calls|additional_kwargs|tool_?calls?|function_calls?|toolCalls"
        "|content|value|parts|text|reasoning_details"
    ),
    "call": re.compile("custom|arguments|args|parameters|input|params|kwargs|tool_input"),
    "part": re.compile("text|value|content|input|output|result|arguments|args"),
}
# keys that repeat what the place of the object says: never reported
_REDUNDANT: Mapping[Level, frozenset[str]] = {
    "record": frozenset(),
    "message": frozenset(),
    "call": frozenset({"type", "index", "requestor"}),
    "part": frozenset({"type", "index", "state"}),
}
_PLACES: Mapping[Level, str] = {"record": "", "message": "messages: ", "call": "calls: ", "part": "parts: "}
_OWNERS: Mapping[Level, str] = {"record": "it", "message": "a message", "call": "a call", "part": "a part of a message"}
_MAX_LITERAL_CHARS = 200_000  # of Python source: its parser takes a kilobyte for each bracket


class Fields:
    """The fields of one object, each taken once by its meaning; `close` judges what is left.
    `unread` collects the keys of the whole record that nobody read."""

    def __init__(self, content: Mapping[str, Any], level: Level, unread: set[str]) -> None:
        self.content, self.unread, self._level = content, unread, level
        self._taken: set[str] = set()

    def has(self, meaning: str) -> bool:
        """True if a key of this meaning has a value, be it empty."""
        return any(self.content.get(key) is not None for key in self._spellings(meaning))

    def key(self, meaning: str) -> str:
        """The spelling under which the value stands."""
        keys = self._spellings(meaning)
        return next((key for key in keys if self.content.get(key) is not None), keys[0])

    def take(self, meaning: str) -> Any:
        """The value, or None. Raises ValueError where two spellings have values that differ."""
        keys = [key for key in self._spellings(meaning) if self.content.get(key) is not None]
        self._taken.update(self._spellings(meaning))
        filled = [key for key in keys if self.content[key] not in ("", [])] or keys[:1]
        for other in filled[1:]:
            if _plain(self.content[filled[0]]) != _plain(self.content[other]):
                raise ValueError(f"{self._owner} has {filled[0]} and {other}, which mean the same and differ")
        return self.content[filled[0]] if filled else None

    def raw(self, *keys: str) -> Any:
        """The value of the first of these keys that has one, whatever others mean the same."""
        self._taken.update(keys)
        return next((self.content[key] for key in keys if self.content.get(key) is not None), None)

    def left(self) -> list[str]:
        """The keys with a value that nobody has taken."""
        known = self._taken | _REDUNDANT[self._level]
        return [key for key, value in self.content.items() if key not in known and not is_empty(value)]

    def close(self) -> None:
        """Notes the unread keys. Raises ValueError where one would change the record's meaning."""
        for key in self.left():
            value = self.content[key]
            if _MEANINGFUL[self._level].fullmatch(key) and not (value == 1 and re.fullmatch(_MASKS, key)):
                raise ValueError(
                    f"{self._owner} has the key {key!r}, which changes what it means and is not read here: "
                    "bring it into a form that is read (docs/your-trajectories.md), or remove it"
                )
            self.unread.add(f"{_PLACES[self._level]}{key}")

    @property
    def _owner(self) -> str:
        return _OWNERS[self._level]

    def _spellings(self, meaning: str) -> tuple[str, ...]:
        return SPELLINGS[self._level].get(meaning, (meaning,))


def is_empty(value: Any) -> bool:
    """True if a value is null or an empty text, list or object; false and zero are values."""
    return value is None or (isinstance(value, (str, list, dict)) and not without_nulls(value))


def without_nulls(value: Any) -> Any:
    """The value without the keys whose value is null, at any depth; lists keep theirs."""
    if isinstance(value, Mapping):
        return {key: without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [without_nulls(inner) for inner in value] if isinstance(value, list) else value


def from_json(content: Any, what: str) -> Any:
    """`content`, decoded where it is JSON text, as tables of text hold lists. Raises ValueError."""
    if not isinstance(content, str):
        return content
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{what} is text and no JSON: {content[:80]!r}") from error


def listed(content: Any, what: str) -> list[Any]:
    """A list that is not empty, or the JSON text of one. Raises ValueError that names it."""
    items = from_json(content, what)
    if not isinstance(items, list) or not items:
        raise ValueError(f"{what} is no list, or an empty one")
    return items


def read_literal(text: str) -> Any:
    """The value of JSON, or of Python's spelling of it. Raises ValueError."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        if len(text) > _MAX_LITERAL_CHARS:
            raise ValueError(f"neither JSON nor short enough to be Python's: {text[:80]!r}") from error
    try:
        return ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as error:
        raise ValueError(f"neither JSON nor Python's spelling of it: {text[:80]!r}") from error


def refuse_lone_surrogates(text: str) -> None:
    """Raises ValueError where half of a surrogate pair stands alone: no file could hold it."""
    if not text.isascii() and (found := LONE_SURROGATES.search(text)):
        raise ValueError(f"half of a character (U+{ord(found[0]):04X}) stands alone in a text")


def _plain(value: Any) -> Any:
    """A form in which the JSON text of an object or list equals its value."""
    if isinstance(value, str):
        try:
            decoded = json.loads(value)
        except (ValueError, RecursionError):
            return value
        return without_nulls(decoded) if isinstance(decoded, (dict, list)) else value
    return without_nulls(value)
