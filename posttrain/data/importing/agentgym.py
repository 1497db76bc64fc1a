"""AgentGym's trajectories: `item_id`, and turns with a flag whether their words are learnt.

The first turn instructs, the second agrees ("OK. I'll follow your instructions"), and the task
stands in the third: the instruction becomes the system's text, and the agreement, which nobody
learns, is left out. Actions stay text, as the environments read them.
"""

from collections.abc import Mapping
from typing import Any

from posttrain.data.importing.fields import Fields
from posttrain.data.importing.messages import role_of
from posttrain.data.importing.texts import from_json


def looks_like(record: Mapping[str, Any]) -> bool:
    """Only its records have an `item_id` beside their turns."""
    return "item_id" in record and "conversations" in record


def read(fields: Fields) -> Mapping[str, Any]:
    """Raises ValueError where there are no turns."""
    turns = from_json(fields.raw("conversations"), "conversations")
    if not isinstance(turns, list) or not turns:
        raise ValueError("conversations is not a list with turns")
    if [role_of(turn) for turn in turns[:3]] == ["user", "assistant", "user"] and turns[1].get("loss") is False:
        turns = [{"role": "system", "content": turns[0]["value"]}, *turns[2:]]
    return {"task_id": fields.raw("item_id"), "messages": turns, "tools": fields.take("tools") or []}
