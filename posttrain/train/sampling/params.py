"""The knobs of which tasks are played, and for how long a step goes on."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from posttrain.runtime.knobs import Decay, Section


class UniformSampling(Section):
    """Every task as often as every other."""

    type: Literal["uniform"]


class SpreadSampling(Section):
    """Tasks whose groups differed in reward before likelier than others, whose odds are `floor`;
    a group counts `decay` as much after each further one of its task. What those with the same
    `labels` came to counts as one group more."""

    example: ClassVar[str] = "{labels: [kind, difficulty], floor: 0.1, decay: 0.5}"
    type: Literal["spread"]
    labels: list[str]
    floor: Annotated[float, Field(gt=0, le=1)]
    decay: Decay


class GresoSampling(Section):
    """Every task as often as every other, but skipped the likelier the more of its last groups in a
    row were equal and all solved (easy), or equal and all failed (hard): it is played with a chance
    of p to the power of their number (GRESO). p is `start` at first, and falls while the share of
    easy, or of hard, groups is at its target or above."""

    example: ClassVar[str] = "{easy_share: 0.0833, hard_share: 0.1667, start: 0.5}"
    type: Literal["greso"]
    easy_share: Annotated[float, Field(gt=0, le=1)]
    hard_share: Annotated[float, Field(gt=0, le=1)]
    start: Annotated[float, Field(ge=0.05, le=0.95)]


class PoolShares(Section):
    """Of a step's tasks. Tasks never played are in the middle, which therefore has a share."""

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


class HorizonSampling(Section):
    """Tasks up to a level of `label`, a number that the world gives each: the lowest at first, the
    next one whenever `promote_at` of the episodes at the highest succeed, a draw's counting `decay`
    as much as the next one's."""

    example: ClassVar[str] = "{label: difficulty, promote_at: 0.7, decay: 0.5}"
    type: Literal["horizon"]
    label: Annotated[str, Field(min_length=1)]
    promote_at: Annotated[float, Field(gt=0, le=1)]
    decay: Decay


Order = UniformSampling | SpreadSampling | GresoSampling | PoolSampling | HorizonSampling


class SamplingParams(Section):
    """In which order tasks are played, and how often a step goes on playing others, at most, until
    it has `tasks_per_step` groups that differ in reward (DAPO's dynamic sampling); 0 takes groups
    as they come."""

    order: Annotated[Order, Field(discriminator="type")]
    max_refills: Annotated[int, Field(ge=0, le=100)]
