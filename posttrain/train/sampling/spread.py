"""Tasks whose groups lately differed in reward more often than those whose did not: a group of
equal rewards teaches nothing, and is likely to be one again.

Each task is chosen with odds of `floor` + (1 - `floor`) · s: s is the share of its groups that
differed, each counting `decay` as much as the next one. What is to be expected of a task before it
was played is told by those that are like it: the share of all tasks with the same labels counts as
one group of its own, and 1 where none of them was played. The odds change which objective is
climbed: that of the tasks in these proportions.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from posttrain.train.advantages.history import TaskHistory
from posttrain.types import Task


class Spread:
    """A pure function of the seed, of how often was chosen before, and of what was seen."""

    def __init__(self, tasks: Sequence[Task], *, seed: int, labels: Sequence[str], floor: float, decay: float) -> None:
        self._tasks, self._seed, self._floor = tasks, seed, floor
        self._alike = {task.task_id: _values(task, labels) for task in tasks}
        self._seen, self._seen_alike, self._num_draws = TaskHistory(decay), TaskHistory(decay), 0

    def choose(self, count: int) -> list[Task]:
        """`count` different tasks, those that differ likelier first (Gumbel's trick: a draw without
        replacement, in proportion to the odds)."""
        rng = np.random.default_rng([self._seed, self._num_draws])
        self._num_draws += 1
        keys = np.log([self._odds(task) for task in self._tasks]) + rng.gumbel(size=len(self._tasks))
        return [self._tasks[index] for index in np.argsort(-keys, kind="stable")[:count]]

    def observe(self, task_id: str, *, has_spread: bool, success: float) -> None:  # noqa: ARG002 the protocol's
        """What a group of the task came to."""
        self._seen.add(task_id, np.array([float(has_spread)]))
        self._seen_alike.add(self._alike[task_id], np.array([float(has_spread)]))

    def state(self) -> Mapping[str, object]:
        """As JSON has it, for a checkpoint."""
        return {"num_draws": self._num_draws, "seen": self._seen.state(), "alike": self._seen_alike.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """The reverse."""
        self._num_draws = state["num_draws"]
        self._seen.restore(state["seen"])
        self._seen_alike.restore(state["alike"])

    def share(self, task: Task) -> float:
        """What is expected of its next group: that it differs. Two groups of its own of which one
        differed, at a decay of 1, and a third of those alike: (1 + 1/3) / 3."""
        alike = self._seen_alike.mean(self._alike[task.task_id])
        own, count = self._seen.mean(task.task_id) or 0.0, self._seen.count(task.task_id)
        return (own * count + (1.0 if alike is None else alike)) / (count + 1)

    def _odds(self, task: Task) -> float:
        return self._floor + (1 - self._floor) * self.share(task)


def _values(task: Task, labels: Sequence[str]) -> str:
    """A task is like those with the same values; like itself alone where no label is named."""
    return json.dumps([task.labels.get(label, "") for label in labels]) if labels else task.task_id
