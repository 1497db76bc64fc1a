"""Spread sampling: more of the tasks whose groups lately differed in reward, as a group of equal
rewards teaches nothing and is likely to be followed by another.

Each task is chosen with odds of `floor` + (1 - `floor`) · s: s is the share of its groups that
differed, each counting `decay` as much as the next one. The share of all tasks with the same labels
counts as one group more, and 1 where none of them was played. The odds change the objective: it is
that of the tasks in these proportions.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from posttrain.runtime.knobs import Decay, Section
from posttrain.train.advantages.history import TaskHistory
from posttrain.types import Task


class SpreadSampling(Section):
    """Tasks whose groups differed in reward before likelier than others, whose odds are `floor`;
    a group counts `decay` as much after each further one of its task. What those with the same
    `labels` came to counts as one group more."""

    example: ClassVar[str] = "{labels: [kind, difficulty], floor: 0.1, decay: 0.5}"
    type: Literal["spread"]
    labels: list[str]
    floor: Annotated[float, Field(gt=0, le=1)]
    decay: Decay

    def make(self, tasks: Sequence[Task], *, seed: int) -> "Spread":
        return Spread(self, tasks, seed=seed)


class Spread:
    """Chooses by the seed, the number of draws, and the groups observed so far."""

    def __init__(self, params: SpreadSampling, tasks: Sequence[Task], *, seed: int) -> None:
        self._tasks, self._seed, self._floor = tasks, seed, params.floor
        self._alike = {task.task_id: _values(task, params.labels) for task in tasks}
        self._seen, self._seen_alike, self._num_draws = TaskHistory(params.decay), TaskHistory(params.decay), 0

    def choose(self, count: int) -> list[Task]:
        """`count` different tasks, those that differ likelier first (Gumbel's trick: a draw without
        replacement, in proportion to the odds)."""
        rng = np.random.default_rng([self._seed, self._num_draws])
        self._num_draws += 1
        keys = np.log([self._odds(task) for task in self._tasks]) + rng.gumbel(size=len(self._tasks))
        return [self._tasks[index] for index in np.argsort(-keys, kind="stable")[:count]]

    def observe(self, task_id: str, *, has_spread: bool, success: float) -> None:  # noqa: ARG002 the protocol's
        self._seen.add(task_id, np.array([float(has_spread)]))
        self._seen_alike.add(self._alike[task_id], np.array([float(has_spread)]))

    def state(self) -> Mapping[str, object]:
        """For a checkpoint, in JSON's types."""
        return {"num_draws": self._num_draws, "seen": self._seen.state(), "alike": self._seen_alike.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Load what `state` returned."""
        self._num_draws = state["num_draws"]
        self._seen.restore(state["seen"])
        self._seen_alike.restore(state["alike"])

    def share(self, task: Task) -> float:
        """Expected share of the task's groups that differ. Two groups of its own of which one
        differed, at a decay of 1, and a third of those alike: (1 + 1/3) / 3."""
        alike = self._seen_alike.mean(self._alike[task.task_id])
        own, count = self._seen.mean(task.task_id) or 0.0, self._seen.count(task.task_id)
        return (own * count + (1.0 if alike is None else alike)) / (count + 1)

    def _odds(self, task: Task) -> float:
        return self._floor + (1 - self._floor) * self.share(task)


def _values(task: Task, labels: Sequence[str]) -> str:
    """A key that is the same for tasks alike; each task's own where no label is named."""
    return json.dumps([task.labels.get(label, "") for label in labels]) if labels else task.task_id
