"""xLAM and APIGen: a `query`, the calls that answer it, the tools; all three may be JSON text.

There are no results: the calls are all that the agent has to do, and the episode is over with them.
"""

from collections.abc import Mapping
from typing import Any

from posttrain.data.importing.fields import Fields
from posttrain.data.importing.texts import from_json


def looks_like(record: Mapping[str, Any]) -> bool:
    """A query with answers."""
    return "query" in record and "answers" in record


def read(fields: Fields) -> Mapping[str, Any]:
    """Raises ValueError where the answers are no list of calls."""
    query, calls, own_id = fields.raw("query"), from_json(fields.raw("answers"), "answers"), fields.raw("id")
    if not isinstance(query, str) or not isinstance(calls, list) or not calls:
        raise ValueError("its answers are no list with calls, or its query is not text")
    asked = {"role": "user", "content": query}
    return {
        "task_id": None if own_id is None else f"xlam-{own_id}",
        "messages": [asked, {"role": "assistant", "content": "", "tool_calls": calls}],
        "stop_reason": "world_over",
    }
