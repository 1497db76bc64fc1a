"""Reads tool calls under any of their spellings, and pairs calls with results.

Arguments are text or an object. None at all, and the empty text that servers give for a tool
without parameters, are the empty object; text that was encoded twice is decoded once more; any
other text stays as written, even where it does not parse.
"""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from posttrain.data.importing.fields import Fields, is_empty, without_nulls
from posttrain.types import Message, ToolCall, in_order_of_calls

_TYPES = (None, "function", "tool_call", "tool_use", "tool-call", "function_call", "toolCall")
_NULLS = "calls: nulls in arguments, taken for arguments that were not given"


def read_call(call: Any, unread: set[str]) -> ToolCall:
    """The call, with an empty id where it has none. Raises ValueError where it has no name, or
    where its arguments stand under an unknown key."""
    if not isinstance(call, Mapping):
        raise ValueError(f"a tool call is {type(call).__name__}, not an object")
    if call.get("type") not in _TYPES:
        raise ValueError(f"a tool call is of the type {str(call['type'])[:80]!r}; only functions can be called")
    inner: Mapping[str, Any] = next(
        (call[key] for key in ("function", "functionCall") if isinstance(call.get(key), Mapping)), {}
    )
    outer = {key: value for key, value in call.items() if value is not inner}
    if twice := [key for key in inner if not is_empty(outer.get(key)) and outer[key] != inner[key]]:
        raise ValueError(f"a tool call has {twice[0]!r} twice, and they differ")
    fields = Fields({**outer, **inner}, "call", unread)
    name = fields.take("name")
    if not isinstance(name, str):
        raise ValueError("a tool call has no name as text")
    call_id = optional_text(fields.take("id"), "a tool call's id") or ""
    has_arguments, given = fields.has("arguments"), fields.take("arguments")
    if not has_arguments and (others := fields.left()):
        raise ValueError(
            f"a call of {name[:80]} has no arguments, but {', '.join(others)[:200]}: arguments are read under "
            "arguments, args, parameters and input"
        )
    fields.close()
    if isinstance(given, Mapping) and without_nulls(given) != given:
        unread.add(_NULLS)
    return ToolCall(call_id, name, _arguments_text(given, name))


def optional_text(value: Any, what: str) -> str | None:
    """A short text, None where there is none. Raises ValueError that names it."""
    if value is None or (isinstance(value, str) and len(value) <= 256):
        return value or None
    raise ValueError(f"{what} is not text of at most 256 characters")


def pair_results(messages: Sequence[Message], tool_names: Sequence[str] = ()) -> tuple[Message, ...]:
    """Give every call an id of its own, and put the results of a turn in the order of its calls
    with their ids. An id that an earlier turn has used gets a number: some servers count anew in
    each.

    A result belongs to the call with its id; without an id, to the first open call of its tool
    (`tool_names`, by message); without both, results and calls have one order. Raises ValueError
    where that leaves a choice.
    """
    names = [*tool_names, *[""] * (len(messages) - len(tool_names))]
    given = {call.id for message in messages for call in message.tool_calls if call.id}
    used: set[str] = set()
    numbers = itertools.count()
    paired = list(messages)
    turns = [index for index, message in enumerate(messages) if message.role == "assistant"]
    for turn, end in zip(turns, [*turns[1:], len(messages)][: len(turns)], strict=True):
        calls = messages[turn].tool_calls
        ids = _unused_ids(calls, used, given, numbers)
        numbered = tuple(replace(call, id=own) for call, own in zip(calls, ids, strict=True))
        paired[turn] = replace(messages[turn], tool_calls=numbered)
        places = [index for index in range(turn + 1, end) if messages[index].role == "tool"]
        answered = _answered_calls(calls, [(messages[place].tool_call_id, names[place]) for place in places])
        for place, which in zip(places, answered, strict=True):
            if which is not None:
                paired[place] = replace(messages[place], tool_call_id=ids[which])
        paired[turn + 1 : end] = in_order_of_calls(paired[turn + 1 : end], numbered)
    return tuple(paired)


def _unused_ids(calls: Sequence[ToolCall], used: set[str], given: set[str], numbers: Iterator[int]) -> list[str]:
    """An id for each call of a turn, added to `used`; a made-up one is none of `given`."""
    ids: list[str] = []
    for call in calls:
        own = call.id
        # calls of one turn may share an id, which validation refuses; an earlier turn's is taken
        while not own or (own in used and own not in ids):
            own = f"{call.id or 'call'}_{next(numbers)}"
            own = "" if own in given else own
        ids.append(own)
    used.update(ids)
    return ids


def _answered_calls(calls: Sequence[ToolCall], results: Sequence[tuple[str | None, str]]) -> list[int | None]:
    """The index of the call that each result of a turn (its id and its tool's name) answers; None
    where no call has its id, or where no call is open."""
    waiting = dict(enumerate(calls))
    found: list[int | None] = [None] * len(results)

    def answer(result: int, which: int | None) -> None:
        if which is not None:
            found[result] = which
            del waiting[which]

    # ids first, then names, then the order: a weaker hint must not take a call from a stronger one
    for at, (call_id, _) in enumerate(results):
        if call_id:
            answer(at, next((which for which, call in waiting.items() if call.id == call_id), None))
    for at, (call_id, name) in enumerate(results):
        if not call_id and name and waiting:
            which = next((which for which, call in waiting.items() if call.name == name), None)
            if which is None:
                raise ValueError(f"a result of {name[:80]!r} stands where no call of that tool waits for one")
            answer(at, which)
    unnamed = [at for at, (call_id, name) in enumerate(results) if not call_id and not name]
    if unnamed and len(waiting) > 1 and len(unnamed) < len(results):
        raise ValueError("only some results of a turn say which call they answer: give each its tool_call_id")
    for at in unnamed:
        answer(at, next(iter(waiting), None))
    return found


def _arguments_text(arguments: Any, name: str) -> str:
    if isinstance(arguments, str):
        return _decoded_once(arguments) or "{}"
    if arguments is None:
        return "{}"
    if not isinstance(arguments, Mapping):
        raise ValueError(
            f"the arguments of a call of {name[:80]} are {type(arguments).__name__}, neither text nor an object"
        )
    return json.dumps(without_nulls(arguments), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _decoded_once(text: str) -> str:
    """The text of an object that was encoded twice, decoded once; empty where it is blank."""
    if text.lstrip()[:1] != '"':
        return text if text.strip() else ""
    try:
        inner = json.loads(text)
        return inner if isinstance(inner, str) and isinstance(json.loads(inner or "{}"), dict) else text
    except (ValueError, RecursionError):
        return text
