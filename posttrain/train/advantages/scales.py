"""What the difference to a baseline is measured by."""

from posttrain.train.advantages.groups import FloatArray
from posttrain.train.advantages.params import BatchStd, GroupStd, ScaleParams, Unscaled


def scaled(differences_G: FloatArray, scale: ScaleParams, *, compared: FloatArray, batch: FloatArray) -> FloatArray:
    """`compared`: what the baseline is a mean of; `batch`: the same of all of the step's episodes.

    Over a deviation the gradient is that of another objective: groups that hardly differ count as
    much as those that differ by all there is (arXiv 2503.20783, section 3.1). Differences of 3/4
    and three times -1/4 among 1, 0, 0, 0, whose deviation is 1/2: 3/2 and -1/2.
    """
    match scale:
        case Unscaled():
            return differences_G
        case GroupStd(floor=floor):
            return differences_G / (deviation(compared) + floor)
        case BatchStd(floor=floor):
            return differences_G / (deviation(batch) + floor)


def deviation(values: FloatArray) -> float:
    """With one less than their number in the denominator."""
    return float(values.std(ddof=1))
