"""Baselines, with which an episode's reward is compared, and scales, by which the difference is
divided. Each class is the knobs and the maths of one; a new one is a class here, its name in
`BaselineParams`, and a test that enumerates its gradient (`tests/train/online/bandit.py`).

"Gradient" in a docstring is the expected gradient of the policy, unscaled, J being the expected
reward. A baseline that does not depend on the episode's own actions changes nothing (Williams
1992); the share of its own reward in it shortens the gradient by that share. Over a deviation it is
that of another objective: groups that hardly differ count as much as others (arXiv 2503.20783,
section 3.1).

A deviation is around the baseline, so that no advantage is larger than the root of the number of
rewards that were compared: each of n differences is within the root of the sum of all their
squares, of which the deviation is 1/sqrt(n - 1). A group's own mean gives (n - 1)/sqrt(n) at most
(one right of n), the mean of the others sqrt(n). Around another point than the baseline the
deviation may vanish where the differences do not: equal rewards of 1 less nothing would
be 1 over the floor, 10,000.
"""

import math
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field

from posttrain.runtime.knobs import Section
from posttrain.train.advantages.groups import FloatArray


class Expected(NamedTuple):
    """`expected_G`: each member's baseline. `deviation`: what `group_std` divides by."""

    expected_G: FloatArray
    deviation: float


class _Baseline(Section):
    is_own_mean: ClassVar[bool] = False  # of a group of equal rewards it is exactly that reward
    is_within_step: ClassVar[bool] = False  # the deviation of a step's rewards is no less than around the baseline


class Nothing(_Baseline):
    """Nothing: an episode counts what it earned, and one that earned nothing does not (REINFORCE;
    of rewards of 0 and 1, RAFT)."""

    type: Literal["nothing"]

    def of_group(self, rewards_G: FloatArray, _batch: FloatArray) -> Expected:
        """Gradient: J's. With rewards of 0 and 1 this is learning from successes alone (RAFT, arXiv
        2304.06767, without a ranking): failures push nothing down."""
        return _around(0.0, rewards_G)


class GroupMean(_Baseline):
    """The mean of the group (GRPO)."""

    is_own_mean: ClassVar[bool] = True
    is_within_step: ClassVar[bool] = True
    type: Literal["group_mean"]

    def of_group(self, rewards_G: FloatArray, _batch: FloatArray) -> Expected:
        """Gradient: (G - 1)/G of J's (arXiv 2402.03300). Rewards 1, 0, 0, 0: 1/4 for each."""
        return Expected(np.full(len(rewards_G), rewards_G.mean()), deviation(rewards_G))


class LeaveOneOut(_Baseline):
    """The mean of the group's other members (RLOO)."""

    is_own_mean: ClassVar[bool] = True
    type: Literal["leave_one_out"]

    def of_group(self, rewards_G: FloatArray, _batch: FloatArray) -> Expected:
        """Gradient: J's (arXiv 2402.14740). Rewards 1, 0, 0, 0: 0 for the first and 1/3 for each
        other."""
        # float64: in float32 a sum less a member is not the sum of the others
        return Expected((rewards_G.sum() - rewards_G) / (len(rewards_G) - 1), deviation(rewards_G))


class VirtualBest(_Baseline):
    """The mean of the group with one more member that earned `best` (NGRPO); none may earn more."""

    type: Literal["virtual_best"]
    best: float

    def of_group(self, rewards_G: FloatArray, _batch: FloatArray) -> Expected:
        """Gradient: G/(G + 1) of J's (arXiv 2509.18851, eq. 6); the constant adds noise and
        entropy of expectation zero. Eight rewards of 0 and a best of 1: 1/9 for each, among
        nine. Raises ValueError for a reward above it, which would be pushed down."""
        if (most := rewards_G.max(initial=-np.inf)) > self.best:
            raise ValueError(
                f"a reward is {most:g}, more than the virtual best of {self.best:g}: raise credit's `best`"
            )
        # the virtual member is in the mean and in the deviation, and has no advantage of its own
        compared = np.append(rewards_G, self.best)
        return Expected(np.full(len(rewards_G), compared.mean()), deviation(compared))


class BatchMean(_Baseline):
    """The mean of all of the step's episodes."""

    is_within_step: ClassVar[bool] = True
    type: Literal["batch_mean"]

    def of_group(self, rewards_G: FloatArray, batch: FloatArray) -> Expected:
        """Gradient: (N - 1)/N of J's, N being the step's episodes, this group's among them."""
        return _around(float(batch.mean()), rewards_G)


BaselineParams = Annotated[Nothing | GroupMean | LeaveOneOut | VirtualBest | BatchMean, Field(discriminator="type")]


class Unscaled(Section):
    """The difference as it is (Dr. GRPO)."""

    type: Literal["none"]

    def divisor(self, _of_group: float, _of_step: float) -> float:
        return 1.0


class GroupStd(Section):
    """Over the deviation of the group's rewards around their baseline, plus `floor`: the standard
    deviation of what a mean is of, a virtual best included, and for `nothing` the root mean
    square of the differences."""

    type: Literal["group_std"]
    floor: Annotated[float, Field(gt=0, le=1)]

    def divisor(self, of_group: float, _of_step: float) -> float:
        """Rewards 1, 0, 0, 0 around their mean: 1/2, but for the floor; around nothing: the
        root of 1/3, 0.577."""
        return of_group + self.floor


class BatchStd(Section):
    """Over the deviation of all of the step's rewards, plus `floor`: their standard deviation under
    the means of the group and of the step, and under other baselines the root mean square of the
    step's differences."""

    type: Literal["batch_std"]
    floor: Annotated[float, Field(gt=0, le=1)]

    def divisor(self, _of_group: float, of_step: float) -> float:
        return of_step + self.floor


ScaleParams = Annotated[Unscaled | GroupStd | BatchStd, Field(discriminator="type")]


def deviation(values: FloatArray) -> float:
    """Standard deviation with one less than their number in the denominator."""
    return float(values.std(ddof=1))


def root_mean_square(differences: FloatArray) -> float:
    """Deviation around 0, with one less than their number in the denominator as well: of
    differences from their own mean it is the standard deviation."""
    return math.sqrt(float(differences @ differences) / (len(differences) - 1))


def _around(baseline: float, rewards_G: FloatArray) -> Expected:
    return Expected(np.full(len(rewards_G), baseline), root_mean_square(rewards_G - baseline))
