"""Compares imported rows with the tools of the world in which the policy is evaluated: other tools
could not be called there."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from math import ceil

from posttrain.data.importing.importer import Imported
from posttrain.data.importing.records import BadRecord
from posttrain.data.importing.tools import is_inferred
from posttrain.data.schemas import TrajectoryRow, message_columns
from posttrain.runtime.exits import DataError
from posttrain.worlds.tools import Tool

_NUM_NAMED = 8


def match_world_tools(imported: Imported, tools: Mapping[str, Tool], *, world: str, max_other_frac: float) -> Imported:
    """Keep the rows that call and offer only tools of this world; the others become bad records. A
    schema that was inferred from calls is replaced by the world's, which evaluation will show.
    Raises DataError where more than `max_other_frac` of the rows would be bad."""
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
    bad = []
    for number, row, names in zip(imported.record_numbers, imported.rows, others, strict=True):
        if names:
            why = f"it uses {_named(names)}, which the world {world} has not"
            bad.append(BadRecord.of(number, why, message_columns(row.trajectory.messages)))
    rows = [_as_offered(row, tools) for row, names in zip(imported.rows, others, strict=True) if not names]
    return replace(imported, rows=rows, bad=sorted([*imported.bad, *bad], key=lambda one: one.number))


def _names(row: TrajectoryRow) -> set[str]:
    """Names of the tools called, and of those offered where that was recorded."""
    offered = {tool["function"]["name"] for tool in row.tools if not is_inferred(tool)}
    return offered | {call.name for message in row.trajectory.messages for call in message.tool_calls}


def _as_offered(row: TrajectoryRow, tools: Mapping[str, Tool]) -> TrajectoryRow:
    """The row with the world's schema for each inferred one, in the world's order."""
    inferred = {tool["function"]["name"] for tool in row.tools if is_inferred(tool)}
    if not inferred:
        return row
    recorded = [tool for tool in row.tools if not is_inferred(tool)]
    return replace(row, tools=(*recorded, *(tool.schema() for name, tool in tools.items() if name in inferred)))


def _named(names: list[str]) -> str:
    more = f" and {len(names) - _NUM_NAMED} more" if len(names) > _NUM_NAMED else ""
    return ", ".join(names[:_NUM_NAMED]) + more
