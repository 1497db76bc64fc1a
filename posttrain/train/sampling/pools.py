"""Pool sampling: fixed shares of a step's tasks from those that are hard, middling and easy for
the policy now, by the share of their episodes that succeeded, a group counting `decay` as much
as the next one: hard at `low` or less, easy at `high` or more. A task never played is middling;
one of a pool with a share of 0 is played again only where the others have too few."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from posttrain.runtime.knobs import Decay, Section
from posttrain.train.sampling.orders import Sampler, TaskHistory
from posttrain.types import Task

Pool = Literal["middle", "hard", "easy"]
POOLS: tuple[Pool, ...] = ("middle", "hard", "easy")  # in the order in which they make up for what others lack


class PoolShares(Section):
    """Shares of a step's tasks. Tasks never played are in the middle, whose share is not 0."""

    hard: Annotated[float, Field(ge=0, lt=1)]
    middle: Annotated[float, Field(gt=0, le=1)]
    easy: Annotated[float, Field(ge=0, lt=1)]

    @model_validator(mode="after")
    def _sum_to_one(self) -> Self:
        total = self.hard + self.middle + self.easy
        if abs(total - 1) > 1e-9:
            raise ValueError(f"hard, middle and easy sum to {total:g}, not 1: they are shares of a step's tasks")
        return self


class PoolSampling(Section):
    """`shares` of a step's tasks that lately succeeded in at most `low` of their episodes (hard),
    in at least `high` (easy), or between; a group counts `decay` as much after each further one of
    its task."""

    example: ClassVar[str] = "{low: 0.2, high: 0.8, shares: {hard: 0.25, middle: 0.6, easy: 0.15}, decay: 0.5}"
    type: Literal["pools"]
    low: Annotated[float, Field(ge=0, lt=1)]
    high: Annotated[float, Field(gt=0, le=1)]
    shares: PoolShares
    decay: Decay

    @model_validator(mode="after")
    def _pools_do_not_overlap(self) -> Self:
        if self.low >= self.high:
            raise ValueError(
                f"low is {self.low:g} and high {self.high:g}: a task would be hard and easy at once; put low below high"
            )
        return self

    def make(self, tasks: Sequence[Task], *, seed: int) -> "Pools":
        return Pools(self, tasks, seed=seed)


class Pools(Sampler):
    def __init__(self, params: PoolSampling, tasks: Sequence[Task], *, seed: int) -> None:
        super().__init__(tasks, seed=seed)
        self._params, self._seen = params, TaskHistory(params.decay)

    def choose(self, count: int) -> list[Task]:
        """`count` different tasks, at random within a pool. The middle makes up for a pool that
        has too few, and then any."""
        rng = self._next_rng()
        # one random offset a draw: rounded alike each time, a small share would never be played
        wanted = rounded_shares([getattr(self._params.shares, pool) for pool in POOLS], count, offset=rng.random())
        shuffled = self._shuffled(rng)
        tasks = {pool: [task for task in shuffled if self.pool_of(task.task_id) == pool] for pool in POOLS}
        chosen = [task for pool, share in zip(POOLS, wanted, strict=True) for task in tasks[pool][:share]]
        left = [task for pool, share in zip(POOLS, wanted, strict=True) for task in tasks[pool][share:]]
        return [*chosen, *left][:count]

    def observe(self, task_id: str, *, has_spread: bool, success: float) -> None:  # noqa: ARG002 the base's
        self._seen.add(task_id, np.array([success]))

    def pool_of(self, task_id: str) -> Pool:
        success, low, high = self._seen.mean(task_id), self._params.low, self._params.high
        if success is None or low < success < high:
            return "middle"
        return "hard" if success <= low else "easy"

    def state(self) -> Mapping[str, object]:
        return {**super().state(), "seen": self._seen.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self._seen.restore(state["seen"])


def rounded_shares(shares: Sequence[float], count: int, *, offset: float) -> list[int]:
    """Share `count` out in integers, each its share rounded down or up; exact on average
    over offsets in [0, 1). Two at shares 0.4, 0.4, 0.2: ends at 0.8, 1.6 and 2, so 0, 1, 1 at an
    offset of 0.1 and 1, 1, 0 at 0.5."""
    ends = np.floor(np.cumsum(shares)[:-1] * count + offset).astype(int)
    return [int(share) for share in np.diff([0, *np.minimum(ends, count), count])]
