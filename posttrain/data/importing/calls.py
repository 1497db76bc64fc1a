"""Reads one tool call, in whatever keys a record has it, and pairs calls with results.

Arguments are text or an object under any of their spellings. Nothing at all, and the empty text
that servers give for a tool without parameters, are the empty object; text that was encoded twice
is decoded once more; any other text stays as it was written, also where it does not parse.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from posttrain.data.importing.fields import Fields, is_empty, without_nulls
from posttrain.types import Message, ToolCall, in_order_of_calls

_TYPES = (None, "function", "tool_call", "tool_use", "tool-call", "function_call", "toolCall")
_NULLS = "calls: nulls in arguments, taken for arguments that were not given"


def read_call(call: Any, unread: set[str]) -> ToolCall:
    """The call, with an empty id where it has none. Raises ValueError where it has no name, or
    where its arguments stand under a key that is not known."""
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


def with_ids(messages: Sequence[Message], tool_names: Sequence[str] = ()) -> tuple[Message, ...]:
    """Every call with an id of its own, and the results of a turn with the ids of their calls, in
    the order of the calls. An id that an earlier turn has used gets a number: some servers count
    anew in each.

    A result is that of the call with its id; without an id, that of the first open call of its
    tool; without both, the results of a turn stand in the order of its calls. Raises ValueError
    where that leaves a choice.
    """
    names = [*tool_names, *[""] * (len(messages) - len(tool_names))]
    used: set[str] = set()
    given = {call.id for message in messages for call in message.tool_calls if call.id}
    numbered = 0
    found = list(messages)
    turns = [index for index, message in enumerate(messages) if message.role == "assistant"]
    for turn, end in zip(turns, [*turns[1:], len(messages)], strict=True):
        ids: list[str] = []
        for call in messages[turn].tool_calls:
            own = call.id
            while not own or (own in used and own not in ids):
                own = f"{call.id or 'call'}_{numbered}"
                own = "" if own in given else own
                numbered += 1
            ids.append(own)
        used.update(ids)
        calls = messages[turn].tool_calls
        found[turn] = replace(
            messages[turn], tool_calls=tuple(replace(call, id=own) for call, own in zip(calls, ids, strict=True))
        )
        places = [index for index in range(turn + 1, end) if messages[index].role == "tool"]
        answered = _answered(calls, [(messages[place].tool_call_id, names[place]) for place in places])
        for place, which in zip(places, answered, strict=True):
            if which is not None:
                found[place] = replace(messages[place], tool_call_id=ids[which])
        found[turn + 1 : end] = in_order_of_calls(found[turn + 1 : end], found[turn].tool_calls)
    return tuple(found)


def _answered(calls: Sequence[ToolCall], results: Sequence[tuple[str | None, str]]) -> list[int | None]:
    """The call that each result of a turn (its id and its tool's name) answers; None where it says
    an id that none has, or where no call is open."""
    waiting = dict(enumerate(calls))
    found: list[int | None] = [None] * len(results)

    def answer(result: int, which: int | None) -> None:
        if which is not None:
            found[result] = which
            del waiting[which]

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
        raise ValueError(
            "some results of a turn say which call they answer and some do not: give each its tool_call_id"
        )
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
    """Without the quotes around the JSON text of an object; empty where there is nothing in it."""
    if text.lstrip()[:1] != '"':
        return text if text.strip() else ""
    try:
        inner = json.loads(text)
        return inner if isinstance(inner, str) and isinstance(json.loads(inner or "{}"), dict) else text
    except (ValueError, RecursionError):
        return text
