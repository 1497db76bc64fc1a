"""The results of the Berkeley Function-Calling Leaderboard: `id`, `result` and, where it was
played over several turns, the log, in which the questions and the tools' results stand.

A result without a log says neither what was asked nor what was offered and is refused.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from posttrain.data.importing.fields import Fields
from posttrain.models.call_formats.pythonic import Pythonic
from posttrain.worlds.tools import json_object

_MAX_CALL_CHARS = 100_000


def looks_like(record: Mapping[str, Any]) -> bool:
    """An id with a result."""
    return "id" in record and "result" in record


def read(fields: Fields) -> Mapping[str, Any]:
    """Raises ValueError where the log is missing or has no turns."""
    log, own_id, tools = fields.raw("inference_log"), fields.raw("id"), fields.raw("function")
    fields.raw("result")  # the calls of the log once more
    turns = [turn for turn in log if isinstance(turn, Mapping)] if isinstance(log, list) else []
    messages = [message for turn in turns for message in _turn(turn)]
    if not messages:
        raise ValueError(
            "it has no inference_log with turns, so nobody knows what was asked; only results of several turns have one"
        )
    return {"task_id": own_id, "messages": messages, **({} if tools is None else {"tools": tools})}


def _turn(turn: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from turn.get("begin_of_turn_query") or ()
    steps = sorted((int(key.removeprefix("step_")), key) for key in turn if key.startswith("step_"))
    for _, key in steps:
        entries = turn[key]
        decoded = next(
            (entry.get("model_response_decoded") for entry in entries if "model_response_decoded" in entry), None
        )
        for entry in entries:
            if entry["role"] == "assistant":
                yield _agent(entry, decoded)
            elif entry["role"] == "tool":
                yield {"role": "tool", "content": entry["content"]}


def _agent(entry: Mapping[str, Any], decoded: Any) -> Mapping[str, Any]:
    reasoning = entry.get("reasoning_content") or None
    said = {"role": "assistant", "content": "", "reasoning_content": reasoning}
    content = entry["content"]
    if isinstance(decoded, list) and decoded:
        return {**said, "tool_calls": [_call(written) for written in decoded]}
    if isinstance(content, list):  # as an API of calls gave them: {name: JSON text of the arguments}
        named = [pair for call in content if isinstance(call, Mapping) for pair in call.items()]
        return {**said, "tool_calls": [{"name": name, "arguments": arguments} for name, arguments in named]}
    return {**said, "content": content}


def _call(written: Any) -> Mapping[str, Any]:
    """`cd(folder="document")` as a call. Raises ValueError where it is none, or its arguments have
    no names."""
    if not isinstance(written, str) or len(written) > _MAX_CALL_CHARS:
        raise ValueError("a call in its log is not text, or longer than any")
    calls = Pythonic().read(f"[{written.strip()}]", ())[1]
    if len(calls) != 1 or json_object(calls[0].arguments) is None:
        raise ValueError(f"a call in its log is not name(argument=value, …): {written[:80]!r}")
    return calls[0]._asdict()
