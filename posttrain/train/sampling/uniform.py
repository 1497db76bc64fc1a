"""Every task as often as every other: shuffled passes over all of them."""

from collections.abc import Mapping, Sequence

import numpy as np

from posttrain.train.sample_order import repeated_passes
from posttrain.types import Task


class Uniform:
    """A pure function of the seed and of how many tasks were chosen before."""

    def __init__(self, tasks: Sequence[Task], *, seed: int) -> None:
        self._tasks, self._seed, self._num_chosen = tasks, seed, 0

    def choose(self, count: int) -> list[Task]:
        """The next `count` tasks."""
        end = self._num_chosen + count
        order = repeated_passes(np.arange(len(self._tasks)), end, np.random.default_rng(self._seed))
        chosen = [self._tasks[index] for index in order[self._num_chosen :]]
        self._num_chosen = end
        return chosen

    def observe(self, task_id: str, *, has_spread: bool, success: float) -> None:
        """It chooses alike whatever came out."""

    def state(self) -> Mapping[str, object]:
        """As JSON has it, for a checkpoint."""
        return {"num_chosen": self._num_chosen}

    def restore(self, state: Mapping[str, object]) -> None:
        """The reverse."""
        assert isinstance(state["num_chosen"], int)
        self._num_chosen = state["num_chosen"]
