"""Fits imported rows to a training run: their tools are compared with those of the world in which
the policy is evaluated, and whole tasks are kept back as the dev split, on which the best
checkpoint is chosen where no expert can play dev tasks.

Tasks are split by the hash of their ids, so that a longer file keeps the same dev tasks. Tasks that
open with the same words are one task here, or a question could be in both splits.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from posttrain.data.importing.importer import Imported
from posttrain.data.importing.records import BadRecord
from posttrain.data.importing.rows import opening_of
from posttrain.data.importing.tools import is_inferred
from posttrain.data.schemas import TrajectoryRow, message_columns, untrained_messages
from posttrain.runtime.exits import DataError
from posttrain.runtime.limits import reason
from posttrain.worlds.tools import Tool


def match_world_tools(imported: Imported, tools: Mapping[str, Tool], *, world: str, max_other_frac: float) -> Imported:
    """Keep the rows that call and offer only tools of this world; the others become bad records. A
    schema that was inferred from calls is replaced by the world's, which evaluation will show.
    Raises DataError where more than `max_other_frac` of the rows, or all, would be bad."""
    others = [sorted(_names(row) - set(tools)) for row in imported.rows]
    num_others = sum(bool(names) for names in others)
    if num_others > max_other_frac * len(imported.rows) or num_others == len(imported.rows) > 0:
        counts = Counter(name for names in others for name in names)
        used = reason(", ".join(name for name, _ in counts.most_common()))
        raise DataError(
            f"{num_others} of {len(others)} imported rows use {used}, which the world {world} has not (it has "
            f"{reason(', '.join(sorted(tools))) or 'no tools'}), and the policy is evaluated there: set world.type to "
            "the world that these rows come from, or leave some out by validate_data.max_quarantine_frac"
        )
    bad = []
    for number, row, names in zip(imported.record_numbers, imported.rows, others, strict=True):
        if names:
            why = f"it uses {', '.join(names)}, which the world {world} has not"
            bad.append(BadRecord.of(number, why, message_columns(row.trajectory.messages)))
    rows = [_as_offered(row, tools) for row, names in zip(imported.rows, others, strict=True) if not names]
    return replace(imported, rows=rows, bad=sorted([*imported.bad, *bad], key=lambda one: one.number))


def split_off_dev(rows: Sequence[TrajectoryRow], dev_frac: float) -> list[TrajectoryRow]:
    """The rows in their order, with the split `dev` for about `dev_frac` of the sft tasks. A file
    that has dev rows keeps its own split. Raises DataError where one split would be empty."""
    own = {row.split for row in rows}
    if dev_frac == 0 or "dev" in own or "sft" not in own:
        return list(rows)
    tasks = _joined_tasks(rows)
    found = [
        replace(row, split="dev") if row.split == "sft" and _hash_frac(task) < dev_frac else row
        for row, task in zip(rows, tasks, strict=True)
    ]
    if {row.split for row in found} >= {"sft", "dev"}:
        return found
    raise DataError(
        f"generate_data.source.dev_frac is {dev_frac:g}, and of {len(set(tasks))} imported tasks "
        f"{'all' if all(row.split == 'dev' for row in found) else 'none'} would be kept back to choose the checkpoint "
        "by: import more tasks, or change the share"
    )


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


def _hash_frac(task_id: str) -> float:
    """A number in [0, 1) that depends on the id alone."""
    return int.from_bytes(hashlib.sha256(task_id.encode()).digest()[:4]) / 2**32


def _joined_tasks(rows: Iterable[TrajectoryRow]) -> list[str]:
    """Each row's task, where tasks with one opening are joined (union-find over ids and
    openings)."""
    parents: dict[str, str] = {}

    def root(key: str) -> str:
        while parents.setdefault(key, key) != key:
            parents[key] = parents[parents[key]]  # path halving: amortised almost constant
            key = parents[key]
        return key

    keys = []
    for row in rows:
        asked = "\n".join(
            one.content
            for one in opening_of(row.trajectory.messages, untrained_messages(row.trajectory))
            if one.role == "user"
        ).strip()
        task = f"id {row.trajectory.task_id}"
        if asked:
            parents[root(f"asked {asked}")] = root(task)
        keys.append(task)
    return [root(key) for key in keys]
