"""Reads public research datasets: xLAM and APIGen, AgentGym, ToolBench."""

import re
from collections.abc import Mapping
from typing import Any

from posttrain.data.importing.fields import Fields, from_json, listed, read_literal
from posttrain.data.importing.messages import role_of

TOOLBENCH_ENDS = ("Finish",)
_ACTION = re.compile(
    r"\s*Thought:(?P<thought>.*?)\n?\s*Action:\s*(?P<name>[^\n]*)\n\s*Action Input:(?P<input>.*)", re.DOTALL
)
_APIS = re.compile(r"(?:Specifically, )?[Yy]ou have access to the following APIs:\s*(?=\[)")
_STEP = re.compile(r"Step (\d+): ")


def is_xlam(record: Mapping[str, Any]) -> bool:
    """A query with answers."""
    return "query" in record and "answers" in record


def read_xlam(fields: Fields) -> Mapping[str, Any]:
    """A `query`, the calls that answer it, and tools, each possibly as JSON text. There are no
    results: the episode is over with the calls. Raises ValueError where there are no calls."""
    query, calls, own_id = fields.raw("query"), from_json(fields.raw("answers"), "answers"), fields.raw("id")
    if not isinstance(query, str) or not isinstance(calls, list) or not calls:
        raise ValueError("its answers are no list with calls, or its query is not text")
    asked = {"role": "user", "content": query}
    return {
        "task_id": None if own_id is None else f"xlam-{own_id}",
        "messages": [asked, {"role": "assistant", "content": "", "tool_calls": calls}],
        "stop_reason": "world_over",
    }


def is_agentgym(record: Mapping[str, Any]) -> bool:
    """Turns with an `item_id`, which no other format has."""
    return "item_id" in record and "conversations" in record


def read_agentgym(fields: Fields) -> Mapping[str, Any]:
    """Turns with `loss` flags. The first turn instructs and becomes the system text; the second
    only agrees, without a loss, and is left out; the task is the third. Actions stay text, as the
    environments read them. Raises ValueError where there are no turns."""
    turns = listed(fields.raw("conversations"), "conversations")
    if [role_of(turn) for turn in turns[:3]] == ["user", "assistant", "user"] and turns[1].get("loss") is False:
        turns = [{"role": "system", "content": turns[0]["value"]}, *turns[2:]]
    return {"task_id": fields.raw("item_id"), "messages": turns, "tools": fields.take("tools") or []}


def is_toolbench(record: Mapping[str, Any]) -> bool:
    """Turns with a call written as `Action:` and `Action Input:`."""
    content = record.get("conversations")
    turns = [turn for turn in content if isinstance(turn, Mapping)] if isinstance(content, list) else []
    values = (turn.get("value") for turn in turns if turn.get("from") in ("assistant", "gpt"))
    return any(isinstance(value, str) and "\nAction Input:" in value and "Action:" in value for value in values)


def read_toolbench(fields: Fields) -> Mapping[str, Any]:
    """Turns of `Thought:`, `Action:` and `Action Input:`; the system text ends with the APIs in
    Python's spelling.

    A record whose id is `Step 4: …` is a prefix of a longer one and stands for its last step: only
    that is trained on, so that earlier steps do not weigh once per record. Raises ValueError where
    the APIs are neither JSON nor Python.
    """
    messages = [_toolbench_message(turn) for turn in listed(fields.raw("conversations"), "conversations")]
    own_id, tools = fields.raw("id"), fields.take("tools")
    if role_of(messages[0]) == "system" and (found := _APIS.search(messages[0]["content"])):
        tools = read_literal(messages[0]["content"][found.end() :].strip())
        messages[0] = {"role": "system", "content": messages[0]["content"][: found.start()].rstrip()}
    if step := _STEP.match(str(own_id)):
        for index in [index for index, message in enumerate(messages) if role_of(message) == "assistant"][:-1]:
            messages[index] = {**messages[index], "weight": 0}
    calls = messages[-1].get("tool_calls", ())
    is_open = bool(calls) and calls[0]["name"] not in TOOLBENCH_ENDS
    return {
        "task_id": None if own_id is None else str(own_id)[step.end() if step else 0 :][:512] or None,
        "messages": messages,
        "tools": tools,
        **({"stop_reason": "world_over"} if step and is_open else {}),
    }


def _toolbench_message(turn: Any) -> dict[str, Any]:
    role, value = role_of(turn), turn.get("value")
    if not isinstance(value, str):
        raise ValueError("a turn's value is not text")
    others = {key: inner for key, inner in turn.items() if key not in ("from", "value")}
    if role != "assistant" or not (found := _ACTION.match(value)):
        return {**others, "role": role, "content": value.strip() if role == "user" else value}
    call = {"name": found["name"].strip(), "arguments": found["input"].strip()}
    thought = found["thought"].strip()
    return {**others, "role": role, "content": "", "reasoning_content": thought, "tool_calls": [call]}
