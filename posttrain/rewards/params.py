"""Knobs of the section `reward`: the weight of each score, strict success above all others."""

import math
from typing import Annotated, Self

from pydantic import Field, model_validator

from posttrain.runtime.knobs import Frac, Section, SmallCount


class ExtraScore(Section):
    """Another score of the world's, `length_penalty`, a judge's as `judge_task`, or a function as
    `module:function`.
    `target_tokens` is of `length_penalty`: the tokens of a message that cost nothing."""

    name: str
    weight: float
    target_tokens: SmallCount | None = None

    @model_validator(mode="after")
    def _has_a_length(self) -> Self:
        if self.target_tokens is not None and self.name != "length_penalty":
            raise ValueError(f"target_tokens is of length_penalty, and the score is {self.name}: leave it out")
        return self


class JudgeParams(Section):
    """A model behind `OPENAI_BASE_URL` that marks episodes (`rollout/judge.py`): the scores
    `judge_task`, `judge_tools`, `judge_reasoning` and `judge_safety` of `extra`. `rubric`: a YAML
    file, a dep of the stages that score, with a text for each dimension; null is the library's
    own."""

    model: str
    rubric: str | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0


class RewardParams(Section):
    """Weights of scores. `weights` are of scores where 1 is good, `penalties` of mistakes where 1
    is bad; each is a score that every world gives (`worlds/grading.py`) or that this one does.
    `allow_failure_above_success`: the weights may be such that a failure can earn more than a
    success, to see what that teaches."""

    weights: dict[str, Frac]
    penalties: dict[str, Annotated[float, Field(le=0)]]
    extra: list[ExtraScore]
    allow_failure_above_success: bool = False
    judge: JudgeParams | None = None

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
        if (found := self.inversion()) and not self.allow_failure_above_success:
            raise ValueError(f"{found}; or set allow_failure_above_success to try it all the same")
        return self

    def inversion(self) -> str:
        """What is not so of: strict success earns more than success, and that more than failure,
        whatever else. Empty where it is."""
        first, second = self.weights.get("completion", 0.0), self.weights.get("strictness", 0.0)
        named = [*self.weights.items(), *self.penalties.items(), *((extra.name, extra.weight) for extra in self.extra)]
        others = math.fsum(abs(weight) for name, weight in named if name not in ("completion", "strictness"))
        if first <= others + second:
            return (
                f"weights.completion is {first:g} and all others come to {others + second:g} (penalties without their "
                "sign): a failure could earn more than a success; raise it above their sum"
            )
        if second and second <= others:
            return (
                f"weights.strictness is {second:g} and all others but completion come to {others:g}: an episode that "
                "called every tool could earn more than one that chose; raise it above their sum, or leave it out"
            )
        return ""
