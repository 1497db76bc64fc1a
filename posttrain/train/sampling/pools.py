"""Shares of a step's tasks that are hard, middling and easy for the policy as it is, so that
neither what it cannot do nor what it can takes up the step.

A task's pool is told by the share of its episodes that succeeded, a group counting `decay` as much
as the next one: hard at `low` or less, easy at `high` or more, else middling, as is a task that was
never played. Of a pool with a share of 0 a task is played again only where the others have too few.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from posttrain.train.advantages.history import TaskHistory
from posttrain.types import Task

Pool = Literal["middle", "hard", "easy"]
POOLS: tuple[Pool, ...] = ("middle", "hard", "easy")  # in the order in which they make up for what others lack


class Pools:
    """A pure function of the seed, of how often was chosen before, and of what was seen."""

    def __init__(
        self,
        tasks: Sequence[Task],
        *,
        seed: int,
        bounds: tuple[float, float],
        shares: Mapping[Pool, float],
        decay: float,
    ) -> None:
        """`bounds` are `low` and `high`; `shares` sum to 1."""
        self._tasks, self._seed, self._bounds, self._shares = tasks, seed, bounds, shares
        self._seen, self._num_draws = TaskHistory(decay), 0

    def choose(self, count: int) -> list[Task]:
        """`count` different tasks, at random within a pool. What a pool lacks comes from the
        middle, and then from any."""
        rng = np.random.default_rng([self._seed, self._num_draws])
        self._num_draws += 1
        wanted = rounded_shares([self._shares[pool] for pool in POOLS], count, offset=rng.random())
        shuffled = [self._tasks[index] for index in rng.permutation(len(self._tasks))]
        tasks = {pool: [task for task in shuffled if self.pool_of(task.task_id) == pool] for pool in POOLS}
        chosen = [task for pool, share in zip(POOLS, wanted, strict=True) for task in tasks[pool][:share]]
        left = [task for pool, share in zip(POOLS, wanted, strict=True) for task in tasks[pool][share:]]
        return [*chosen, *left][:count]

    def observe(self, task_id: str, *, has_spread: bool, success: float) -> None:  # noqa: ARG002 the protocol's
        """A group of the task."""
        self._seen.add(task_id, np.array([success]))

    def pool_of(self, task_id: str) -> Pool:
        """Where the task is now."""
        success, (low, high) = self._seen.mean(task_id), self._bounds
        if success is None or low < success < high:
            return "middle"
        return "hard" if success <= low else "easy"

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


def rounded_shares(shares: Sequence[float], count: int, *, offset: float) -> list[int]:
    """Whole numbers that sum to `count`, each its share of it rounded down or up; exact on average
    over offsets in [0, 1). Two at shares 0.4, 0.4, 0.2: ends at 0.8, 1.6 and 2, so 0, 1, 1 at an
    offset of 0.1 and 1, 1, 0 at one of 0.5."""
    ends = np.floor(np.cumsum(shares)[:-1] * count + offset).astype(int)
    return [int(share) for share in np.diff([0, *np.minimum(ends, count), count])]
