"""Splits imported rows into `sft` and `dev`, on which the best checkpoint is chosen where no expert
can play dev tasks.

Whole tasks are split, by the hash of their ids, so that a longer file keeps the same dev tasks.
Tasks that open with the same words are one task here, or a question could be in both splits.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace

from posttrain.data.importing.rows import opening_of
from posttrain.data.schemas import TrajectoryRow, untrained_messages
from posttrain.runtime.exits import DataError


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


def _hash_frac(task_id: str) -> float:
    """A number in [0, 1) that depends on the id alone."""
    return int.from_bytes(hashlib.sha256(task_id.encode()).digest()[:4]) / 2**32


def _joined_tasks(rows: Iterable[TrajectoryRow]) -> list[str]:
    """Each row's task, where tasks with one opening are joined (union-find over ids and
    openings)."""
    parents: dict[str, str] = {}

    def root(key: str) -> str:
        while parents.setdefault(key, key) != key:
            parents[key] = parents[parents[key]]
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
