"""The sampler that params.yaml chooses."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from posttrain.rl.params import SamplingParams, SpreadSampling
from posttrain.rl.sampling.spread import Spread
from posttrain.rl.sampling.uniform import Uniform
from posttrain.types import Task


class Sampler(Protocol):
    """Which tasks are played next. Its state is in the checkpoint of a training."""

    def choose(self, count: int) -> list[Task]: ...

    def observe(self, task_id: str, *, has_spread: bool) -> None:
        """What a group of a task that was chosen came to: whether its rewards differed."""
        ...

    def state(self) -> Mapping[str, object]: ...

    def restore(self, state: Mapping[str, object]) -> None: ...


def make_sampler(params: SamplingParams, tasks: Sequence[Task], *, seed: int) -> Sampler:
    """`tasks` are those of the rl split."""
    if isinstance(params.order, SpreadSampling):
        return Spread(tasks, seed=seed, floor=params.order.floor, decay=params.order.decay)
    return Uniform(tasks, seed=seed)
