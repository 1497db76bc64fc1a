"""Holds imported rows against the tools of the world that the policy will be evaluated in: what was
learnt of other tools could not be called there.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from math import ceil

from posttrain.data.importing.importer import Imported
from posttrain.data.importing.inferred_tools import is_inferred
from posttrain.data.importing.records import Bad
from posttrain.data.schemas import TrajectoryRow
from posttrain.runtime.exits import DataError
from posttrain.worlds.tools import Tool

_NUM_NAMED = 8


def with_tools_of(imported: Imported, tools: Mapping[str, Tool], *, world: str, max_other_frac: float) -> Imported:
    """The rows that call and offer tools of this world alone; the others are bad records. A schema
    that was inferred from calls becomes the world's own: it is what evaluation shows the policy.

    Raises DataError, in one sentence, where more than `max_other_frac` of the rows would be bad.
    """
    others = [sorted(_names(row) - set(tools)) for row in imported.rows]
    num_others = sum(bool(names) for names in others)
    if num_others > max_other_frac * len(imported.rows) or num_others == len(imported.rows) > 0:
        counts = Counter(name for names in others for name in names)
        least = ceil(100 * num_others / len(imported.rows)) / 100
        else_ = f", or leave these out by a validate_data.max_quarantine_frac of {least:g}" if least < 1 else ""
        raise DataError(
            f"{num_others} of {len(others)} imported rows use {_named(sorted(counts, key=lambda n: (-counts[n], n)))}, "
            f"which the world {world} has not (it has {_named(sorted(tools)) or 'no tools'}), and the policy is "
            f"evaluated there: set world.type to the world that these rows come from{else_}"
        )
    bad = [
        Bad.of(number, f"it uses {_named(names)}, which the world {world} has not", _messages(row))
        for number, row, names in zip(imported.numbers, imported.rows, others, strict=True)
        if names
    ]
    rows = [_as_offered(row, tools) for row, names in zip(imported.rows, others, strict=True) if not names]
    return replace(imported, rows=rows, bad=sorted([*imported.bad, *bad], key=lambda one: one.number))


def _names(row: TrajectoryRow) -> set[str]:
    """Those called, and those offered where that was recorded."""
    offered = {tool["function"]["name"] for tool in row.tools if not is_inferred(tool)}
    return offered | {call.name for message in row.trajectory.messages for call in message.tool_calls}


def _as_offered(row: TrajectoryRow, tools: Mapping[str, Tool]) -> TrajectoryRow:
    """With the world's schema of each tool that was inferred for the file, in the world's order."""
    inferred = {tool["function"]["name"] for tool in row.tools if is_inferred(tool)}
    if not inferred:
        return row
    recorded = [tool for tool in row.tools if not is_inferred(tool)]
    return replace(row, tools=(*recorded, *(tool.schema() for name, tool in tools.items() if name in inferred)))


def _messages(row: TrajectoryRow) -> list[object]:
    return [one.to_openai() for one in row.trajectory.messages]


def _named(names: list[str]) -> str:
    more = f" and {len(names) - _NUM_NAMED} more" if len(names) > _NUM_NAMED else ""
    return ", ".join(names[:_NUM_NAMED]) + more
