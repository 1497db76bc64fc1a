"""Knobs of `train_policy.reward_model_bound`: the bound of several reward models' scores."""

from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from posttrain.runtime.knobs import Section

FloatArray = NDArray[np.float64]


class MeanBound(Section):
    """The mean of the members' scores."""

    type: Literal["mean"]

    def of(self, scores_M_N: FloatArray) -> FloatArray:
        bound: FloatArray = np.mean(scores_M_N, axis=0)
        return bound


class MinBound(Section):
    """The lowest score of any member (worst-case optimisation)."""

    type: Literal["min"]

    def of(self, scores_M_N: FloatArray) -> FloatArray:
        bound: FloatArray = np.min(scores_M_N, axis=0)
        return bound


class LessVarianceBound(Section):
    """The mean less `weight` times the variance over members (uncertainty-weighted)."""

    example: ClassVar[str] = "{weight: 0.5}"
    type: Literal["less_variance"]
    weight: Annotated[float, Field(gt=0)]

    def of(self, scores_M_N: FloatArray) -> FloatArray:
        bound: FloatArray = np.mean(scores_M_N, axis=0) - self.weight * np.var(scores_M_N, axis=0)
        return bound


Bound = Annotated[MeanBound | MinBound | LessVarianceBound, Field(discriminator="type")]
