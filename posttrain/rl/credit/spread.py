"""Whether the rewards of a group differ: the one test that decides what a group can teach."""

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

TOLERANCE = 1e-12  # of the largest reward, or of 1: what sums in another order may differ by


def are_equal(rewards_G: FloatArray) -> bool:
    """Whether all differ by no more than rounding: -0.3 and -0.2 - 0.1 are equal, 0.2 and 0.2000001
    are not. A tolerance on the standard deviation would depend on the group's size, and float32's
    rounding would pass for a spread."""
    spread = float(rewards_G.max() - rewards_G.min())
    return spread <= TOLERANCE * max(1.0, float(np.abs(rewards_G).max()))
