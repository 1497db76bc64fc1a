"""Which imported tasks are kept back to choose the best checkpoint by, where no expert can play dev
tasks: whole tasks, by the hash of their ids, so that a longer file keeps the same ones back.

Two tasks that open with the same words are one task here: an id alone would let a question that was
learnt decide.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace

from posttrain.data.importing.episodes import opening_of
from posttrain.data.schemas import TrajectoryRow
from posttrain.data.trajectories import unlearnt
from posttrain.runtime.exits import DataError

_PLACES = 2**32


def hold_out(rows: Sequence[TrajectoryRow], dev_frac: float) -> list[TrajectoryRow]:
    """The rows in their order, those of about `dev_frac` of the sft tasks with the split `dev`.
    Where the file itself has dev rows, those are taken, and no others.

    Raises DataError where one side would have no row.
    """
    own = {row.split for row in rows}
    if dev_frac == 0 or "dev" in own or "sft" not in own:
        return list(rows)
    tasks = _one_task(rows)
    found = [
        replace(row, split="dev") if row.split == "sft" and _place(task) < dev_frac else row
        for row, task in zip(rows, tasks, strict=True)
    ]
    if {row.split for row in found} >= {"sft", "dev"}:
        return found
    raise DataError(
        f"generate_data.source.dev_frac is {dev_frac:g}, and of {len(set(tasks))} imported tasks "
        f"{'all' if all(row.split == 'dev' for row in found) else 'none'} would be kept back to choose the checkpoint "
        "by: import more tasks, or change the share"
    )


def _place(task_id: str) -> float:
    """In [0, 1), the same for the same id."""
    return int.from_bytes(hashlib.sha256(task_id.encode()).digest()[:4]) / _PLACES


def _one_task(rows: Iterable[TrajectoryRow]) -> list[str]:
    """Each row's task, by the first id under which it or its opening stands in the file."""
    parents: dict[str, str] = {}

    def root(key: str) -> str:
        while parents.setdefault(key, key) != key:
            parents[key] = parents[parents[key]]
            key = parents[key]
        return key

    keys = []
    for row in rows:
        asked = "\n".join(
            one.content for one in opening_of(row.trajectory.messages, unlearnt(row.trajectory)) if one.role == "user"
        ).strip()
        task = f"id {row.trajectory.task_id}"
        if asked:
            parents[root(f"asked {asked}")] = root(task)
        keys.append(task)
    return [root(key) for key in keys]
