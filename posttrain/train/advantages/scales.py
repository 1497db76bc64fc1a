"""Scales: what the difference between a reward and its baseline is divided by.

Over a deviation the gradient is that of another objective: groups that hardly differ count as much
as those that differ by all there is (arXiv 2503.20783, section 3.1).
"""

from typing import Annotated, Literal

from pydantic import Field

from posttrain.runtime.knobs import Section
from posttrain.train.advantages.groups import FloatArray


class Unscaled(Section):
    """The difference as it is (Dr. GRPO)."""

    type: Literal["none"]


class GroupStd(Section):
    """Over the standard deviation of what the baseline is a mean of, plus `floor`."""

    type: Literal["group_std"]
    floor: Annotated[float, Field(gt=0, le=1)]


class BatchStd(Section):
    """Over the standard deviation of all of the step's rewards, plus `floor`."""

    type: Literal["batch_std"]
    floor: Annotated[float, Field(gt=0, le=1)]


ScaleParams = Annotated[Unscaled | GroupStd | BatchStd, Field(discriminator="type")]


def scaled(differences_G: FloatArray, scale: ScaleParams, *, compared: FloatArray, batch: FloatArray) -> FloatArray:
    """`compared`: what the baseline is a mean of; `batch`: the same of all of the step's episodes.
    Differences of 3/4 and three times -1/4 among 1, 0, 0, 0, whose deviation is 1/2: 3/2 and -1/2.
    """
    match scale:
        case Unscaled():
            return differences_G
        case GroupStd(floor=floor):
            return differences_G / (deviation(compared) + floor)
        case BatchStd(floor=floor):
            return differences_G / (deviation(batch) + floor)


def deviation(values: FloatArray) -> float:
    """Standard deviation with one less than their number in the denominator."""
    return float(values.std(ddof=1))
