"""The sampler that params.yaml chooses."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from posttrain.train.sampling.greso import Greso
from posttrain.train.sampling.horizon import Horizon
from posttrain.train.sampling.params import (
    GresoSampling,
    HorizonSampling,
    PoolSampling,
    SamplingParams,
    SpreadSampling,
    UniformSampling,
)
from posttrain.train.sampling.pools import Pool, Pools
from posttrain.train.sampling.spread import Spread
from posttrain.train.sampling.uniform import Uniform
from posttrain.types import Task


class Sampler(Protocol):
    """Which tasks are played next. Its state is in the checkpoint of a training."""

    def choose(self, count: int) -> list[Task]: ...

    def observe(self, task_id: str, *, has_spread: bool, success: float) -> None:
        """What a group of a task that was chosen came to: whether its rewards differed, and which
        share of its members succeeded. Not called for a group that lost all members but one."""
        ...

    def state(self) -> Mapping[str, object]: ...

    def restore(self, state: Mapping[str, object]) -> None: ...


def make_sampler(params: SamplingParams, tasks: Sequence[Task], *, seed: int) -> Sampler:
    """`tasks` are those of the rl split. Raises ConfigurationError where they lack what the order
    goes by."""
    match params.order:
        case UniformSampling():
            return Uniform(tasks, seed=seed)
        case SpreadSampling(labels=labels, floor=floor, decay=decay):
            return Spread(tasks, seed=seed, labels=labels, floor=floor, decay=decay)
        case GresoSampling(easy_share=easy_share, hard_share=hard_share, start=start):
            return Greso(tasks, seed=seed, easy_share=easy_share, hard_share=hard_share, start=start)
        case PoolSampling(low=low, high=high, shares=shares, decay=decay):
            of_pool: dict[Pool, float] = {"middle": shares.middle, "hard": shares.hard, "easy": shares.easy}
            return Pools(tasks, seed=seed, bounds=(low, high), shares=of_pool, decay=decay)
        case HorizonSampling(label=label, promote_at=promote_at, decay=decay):
            return Horizon(tasks, seed=seed, label=label, promote_at=promote_at, decay=decay)
