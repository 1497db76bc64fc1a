"""The orders that params.yaml offers under `sampling`: a line for each, whose knobs and code stand
in a file of its own."""

from collections.abc import Mapping
from typing import Annotated, Any, Protocol

from pydantic import Field

from posttrain.runtime.knobs import Section
from posttrain.train.sampling.greso import GresoSampling
from posttrain.train.sampling.horizon import HorizonSampling
from posttrain.train.sampling.pools import PoolSampling
from posttrain.train.sampling.spread import SpreadSampling
from posttrain.train.sampling.uniform import UniformSampling
from posttrain.types import Task


class Sampler(Protocol):
    """Chooses the tasks to play next. Its state is in the checkpoint of a training."""

    def choose(self, count: int) -> list[Task]:
        """Choose `count` tasks."""
        ...

    def observe(self, task_id: str, *, has_spread: bool, success: float) -> None:
        """Observe a group of a task that was chosen: whether its rewards differed, and which share
        of its members succeeded. Not called for a group that lost all members but one."""
        ...

    def state(self) -> Mapping[str, object]: ...

    def restore(self, state: Mapping[str, Any]) -> None: ...


Order = Annotated[
    UniformSampling | SpreadSampling | GresoSampling | PoolSampling | HorizonSampling, Field(discriminator="type")
]


class SamplingParams(Section):
    """In which order tasks are played, and how often a step goes on playing others, at most, until
    it has `tasks_per_step` groups that differ in reward (DAPO's dynamic sampling); 0 takes groups
    as they come."""

    order: Order
    max_refills: Annotated[int, Field(ge=0, le=100)]
