"""Uniform sampling: shuffled passes over all tasks."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from posttrain.runtime.knobs import Section
from posttrain.train.sample_order import repeated_passes
from posttrain.types import Task


class UniformSampling(Section):
    """Every task as often as every other."""

    type: Literal["uniform"]

    def make(self, tasks: Sequence[Task], *, seed: int) -> "Uniform":
        return Uniform(tasks, seed=seed)


class Uniform:
    """Chooses by the seed and by how many tasks were chosen before, whatever they came to."""

    def __init__(self, tasks: Sequence[Task], *, seed: int) -> None:
        self._tasks, self._seed, self._num_chosen = tasks, seed, 0

    def choose(self, count: int) -> list[Task]:
        """The next `count` tasks."""
        end = self._num_chosen + count
        order = repeated_passes(np.arange(len(self._tasks)), end, np.random.default_rng(self._seed))
        chosen = [self._tasks[index] for index in order[self._num_chosen :]]
        self._num_chosen = end
        return chosen

    def observe(self, task_id: str, *, has_spread: bool, success: float) -> None: ...

    def state(self) -> Mapping[str, object]:
        """For a checkpoint, in JSON's types."""
        return {"num_chosen": self._num_chosen}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Load what `state` returned."""
        self._num_chosen = state["num_chosen"]
