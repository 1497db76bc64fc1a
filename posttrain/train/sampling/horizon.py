"""Horizon sampling: a curriculum over a numeric label of the tasks, such as their difficulty. Tasks
beyond the horizon are not played until those at it succeed.

The label is the world's, known before anything is played: the order needs no oracle and is the same
for every policy. The horizon begins at the lowest level, goes on to the next before a draw where
the success share at it has reached `promote_at`, and never goes back. All tasks within are as
likely: what was learnt is not forgotten.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from posttrain.runtime.exits import ConfigurationError
from posttrain.runtime.knobs import Decay, Section
from posttrain.train.sampling.orders import Sampler, TaskHistory
from posttrain.types import Task

_KNOB = "train_policy.algorithm.sampling.order.label"


class HorizonSampling(Section):
    """Tasks up to a level of `label`, a number that the world gives each: the lowest at first, the
    next one whenever `promote_at` of the episodes at the highest succeed, a draw's counting `decay`
    as much as the next one's."""

    example: ClassVar[str] = "{label: difficulty, promote_at: 0.7, decay: 0.5}"
    type: Literal["horizon"]
    label: Annotated[str, Field(min_length=1)]
    promote_at: Annotated[float, Field(gt=0, le=1)]
    decay: Decay

    def make(self, tasks: Sequence[Task], *, seed: int) -> "Horizon":
        return Horizon(self, tasks, seed=seed)


class Horizon(Sampler):
    def __init__(self, params: HorizonSampling, tasks: Sequence[Task], *, seed: int) -> None:
        super().__init__(tasks, seed=seed)
        self._promote_at = params.promote_at
        self._level_of = {task.task_id: level_of(task, params.label) for task in tasks}
        self._levels = sorted(set(self._level_of.values()))
        self.horizon = self._levels[0]
        self._seen = TaskHistory(params.decay)
        self._observed: list[float] = []  # successes of groups at the horizon, since the last draw

    def choose(self, count: int) -> list[Task]:
        """`count` different tasks at random; with too few within the horizon, of the next
        levels."""
        self._promote()
        # sorted is stable: those within the horizon are equal, and stay shuffled
        return sorted(
            self._shuffled(self._next_rng()), key=lambda task: max(self._level_of[task.task_id], self.horizon)
        )[:count]

    def observe(self, task_id: str, *, has_spread: bool, success: float) -> None:  # noqa: ARG002 the base's
        if self._level_of[task_id] == self.horizon:
            self._observed.append(success)

    def state(self) -> Mapping[str, object]:
        observed = list(self._observed)
        return {**super().state(), "horizon": self.horizon, "seen": self._seen.state(), "observed": observed}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self.horizon, self._observed = state["horizon"], list(state["observed"])
        self._seen.restore(state["seen"])

    def _promote(self) -> None:
        if self._observed:
            self._seen.add(str(self.horizon), np.array(self._observed))
            self._observed.clear()
        share = self._seen.mean(str(self.horizon))
        further = [level for level in self._levels if level > self.horizon]
        if share is not None and share >= self._promote_at and further:
            self.horizon = further[0]


def level_of(task: Task, label: str) -> float:
    """The label as a number: level 2 comes before 10. Raises ConfigurationError where it is
    none."""
    try:
        level = float(task.labels.get(label, "nan"))
    except ValueError:
        level = math.nan
    if not math.isfinite(level):
        raise ConfigurationError(
            f"{_KNOB} is {label!r}, which is {task.labels.get(label)!r} for task {task.task_id}: name a label that "
            "every task of the rl split has as a number, such as difficulty"
        )
    return level
