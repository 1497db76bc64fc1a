"""ToolBench: the agent writes `Thought:`, `Action:` and `Action Input:`, and the system's text ends
with the APIs in Python's spelling.

A record whose id is `Step 4: …` is the beginning of a longer one and stands for its last step: only
that is learnt, so that the steps before it do not weigh once for each record.
"""

import re
from collections.abc import Mapping
from typing import Any

from posttrain.data.importing.fields import Fields
from posttrain.data.importing.messages import role_of
from posttrain.data.importing.texts import from_json, read_literal

STOP_TOOLS = ("Finish",)
_STEP = re.compile(
    r"\s*Thought:(?P<thought>.*?)\n?\s*Action:\s*(?P<name>[^\n]*)\n\s*Action Input:(?P<input>.*)", re.DOTALL
)
_APIS = re.compile(r"(?:Specifically, )?[Yy]ou have access to the following APIs:\s*(?=\[)")
_NUMBER = re.compile(r"Step (\d+): ")


def looks_like(record: Mapping[str, Any]) -> bool:
    """Turns among which is a call in its own words."""
    content = record.get("conversations")
    if not isinstance(content, list):
        return False
    values = (
        turn.get("value") for turn in content if isinstance(turn, Mapping) and turn.get("from") in ("assistant", "gpt")
    )
    return any(isinstance(value, str) and "\nAction Input:" in value and "Action:" in value for value in values)


def read(fields: Fields) -> Mapping[str, Any]:
    """Raises ValueError where the APIs are written in neither JSON nor Python."""
    turns = from_json(fields.raw("conversations"), "conversations")
    if not isinstance(turns, list) or not turns:
        raise ValueError("conversations is not a list with turns")
    messages, own_id = [_message(turn) for turn in turns], fields.raw("id")
    tools = fields.take("tools")
    if role_of(messages[0]) == "system" and (found := _APIS.search(messages[0]["content"])):
        tools = read_literal(messages[0]["content"][found.end() :].strip())
        messages[0] = {"role": "system", "content": messages[0]["content"][: found.start()].rstrip()}
    step = _NUMBER.match(str(own_id))
    if step:
        agents = [index for index, message in enumerate(messages) if role_of(message) == "assistant"]
        for index in agents[:-1]:
            messages[index] = {**messages[index], "weight": 0}
    is_open = bool(messages[-1].get("tool_calls")) and messages[-1]["tool_calls"][0]["name"] not in STOP_TOOLS
    return {
        "task_id": None if own_id is None else str(own_id)[step.end() if step else 0 :][:512] or None,
        "messages": messages,
        "tools": tools,
        **({"stop_reason": "world_over"} if step and is_open else {}),
    }


def _message(turn: Any) -> dict[str, Any]:
    role, value = role_of(turn), turn.get("value")
    if not isinstance(value, str):
        raise ValueError("a turn's value is not text")
    others = {key: inner for key, inner in turn.items() if key not in ("from", "value")}
    if role != "assistant" or not (found := _STEP.match(value)):
        return {**others, "role": role, "content": value.strip() if role == "user" else value}
    call = {"name": found["name"].strip(), "arguments": found["input"].strip()}
    thought = found["thought"].strip()
    return {**others, "role": role, "content": "", "reasoning_content": thought, "tool_calls": [call]}
