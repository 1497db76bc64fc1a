"""Knobs of the section `reward`: the weight of each score, strict success above all others."""

import math
from typing import Annotated, Self

from pydantic import Field, model_validator

from posttrain.runtime.knobs import Frac, Section


class ExtraScore(Section):
    """Another score of the world's, `length_penalty`, or a function as `module:function`."""

    name: str
    weight: float


class RewardParams(Section):
    """Weights of scores. `weights` are of scores where 1 is good, `penalties` of mistakes where 1
    is bad; each is a score that every world gives (`worlds/grading.py`) or that this one does."""

    weights: dict[str, Frac]
    penalties: dict[str, Annotated[float, Field(le=0)]]
    extra: list[ExtraScore]

    @model_validator(mode="after")
    def _weights_sum_to_one(self) -> Self:
        total = sum(self.weights.values())
        if abs(total - 1) > 1e-9:
            raise ValueError(f"the weights sum to {total:g}, not 1; a perfect episode would not earn 1")
        return self

    @model_validator(mode="after")
    def _each_score_once(self) -> Self:
        names = [*self.weights, *self.penalties, *(extra.name for extra in self.extra)]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"{', '.join(twice)} stands twice, and a score counts once: add up the weights")
        return self

    @model_validator(mode="after")
    def _success_comes_first(self) -> Self:
        """Strict success earns more than success, and that more than failure, whatever else."""
        first, second = self.weights.get("completion", 0.0), self.weights.get("strictness", 0.0)
        ranked = {"completion", "strictness"}
        others = math.fsum(
            abs(weight)
            for name, weight in [
                *self.weights.items(),
                *self.penalties.items(),
                *((extra.name, extra.weight) for extra in self.extra),
            ]
            if name not in ranked
        )
        if first <= others + second:
            raise ValueError(
                f"weights.completion is {first:g} and all others come to {others + second:g} (penalties without their "
                "sign): a failure could earn more than a success; raise it above their sum"
            )
        if second and second <= others:
            raise ValueError(
                f"weights.strictness is {second:g} and all others but completion come to {others:g}: an episode that "
                "called every tool could earn more than one that chose; raise it above their sum, or leave it out"
            )
        return self
