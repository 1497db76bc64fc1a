"""Settings whose true success is known: tasks of different difficulty, seeds that lie apart, and
plays that are drawn."""

from dataclasses import dataclass

import numpy as np
from scipy import optimize, special

from posttrain.comparison.significance import Outcomes

DIFFICULTY, OWN, INTERPLAY = 2.0, 0.7, 1.0  # in logits: of a task, of a task under a setting, of a task under a seed


@dataclass(frozen=True)
class SimulatedSetting:
    """Success is `success` over all tasks and seeds; over the seeds its standard deviation is
    `spread`, both as shares."""

    success: float
    spread: float

    def logits(self) -> tuple[float, float]:
        """The mean, and the standard deviation over seeds."""
        noise = np.random.default_rng(7).normal(size=40_000) * np.sqrt(DIFFICULTY**2 + OWN**2 + INTERPLAY**2)

        def rate(mean: float, seed: float = 0.0) -> float:
            return float(special.expit(mean + seed + noise).mean())

        mean = float(optimize.brentq(lambda value: rate(value) - self.success, -20, 20))
        slope = (rate(mean, 0.05) - rate(mean, -0.05)) / 0.1
        return mean, self.spread / slope


def outcomes(
    rng: np.random.Generator, logits: tuple[float, float], tasks_T: np.ndarray, num_seeds: int
) -> list[Outcomes]:
    """The plays of `num_seeds` runs of a setting on tasks of these difficulties."""
    mean, over_seeds = logits
    shape = (num_seeds, len(tasks_T))
    logits_ST = (
        mean
        + tasks_T
        + rng.normal(size=(1, len(tasks_T))) * OWN
        + rng.normal(size=(num_seeds, 1)) * over_seeds
        + rng.normal(size=shape) * INTERPLAY
    )
    return [dict(enumerate(map(float, row))) for row in rng.random(shape) < special.expit(logits_ST)]  # type: ignore[misc]
