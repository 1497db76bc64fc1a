"""Tasks whose groups lately differed in reward more often than those whose did not: a group of
equal rewards teaches nothing, and is likely to be one again.

Each task is chosen with odds of `floor` + (1 - `floor`) · s: s is the share of its groups that
differed, each counting `decay` as much as the next one, and 1 for a task that was never played. The
odds change which objective is climbed: that of the tasks in these proportions.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from posttrain.rl.credit.history import TaskHistory
from posttrain.types import Task


class Spread:
    """A pure function of the seed, of how often was chosen before, and of what was seen."""

    def __init__(self, tasks: Sequence[Task], *, seed: int, floor: float, decay: float) -> None:
        self._tasks, self._seed, self._floor = tasks, seed, floor
        self._seen, self._num_draws = TaskHistory(decay), 0

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

    def state(self) -> Mapping[str, object]:
        """As JSON has it, for a checkpoint."""
        return {"num_draws": self._num_draws, "seen": self._seen.state()}

    def restore(self, state: Mapping[str, object]) -> None:
        """The reverse."""
        num_draws, seen = state["num_draws"], state["seen"]
        assert isinstance(num_draws, int)
        assert isinstance(seen, Mapping)
        self._num_draws = num_draws
        self._seen.restore(seen)

    def _odds(self, task: Task) -> float:
        share = self._seen.mean(task.task_id)
        return self._floor + (1 - self._floor) * (1.0 if share is None else share)
