"""Tests the verdict on two settings by simulation, against settings whose truth is known.

Tasks differ in difficulty, seeds of a setting lie apart, episodes are drawn. Printed: how often
equal settings are called different (at most 5 %), how often the interval covers the truth (at
least 93 %), how often eight points are found.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from posttrain.evals.significance import Decision, Outcomes, difference
from posttrain.provenance.costs import processor_kind

DIFFICULTY, OWN, INTERPLAY = 2.0, 0.7, 1.0  # in logits: of a task, of a task under a setting, of a task under a seed


@dataclass(frozen=True)
class SimulatedSetting:
    """Success is `success` over all tasks and seeds; over seeds its standard deviation is `spread`,
    both as shares."""

    success: float
    spread: float

    def logits(self) -> tuple[float, float]:
        """The mean, and the standard deviation over seeds."""
        noise = np.random.default_rng(7).normal(size=40_000) * np.sqrt(DIFFICULTY**2 + OWN**2 + INTERPLAY**2)

        def rate(mean: float) -> float:
            return float(special.expit(mean + noise).mean())

        mean = float(optimize.brentq(lambda value: rate(value) - self.success, -20, 20))
        slope = (rate(mean + 0.05) - rate(mean - 0.05)) / 0.1
        return mean, self.spread / slope


def simulated_runs(
    rng: np.random.Generator,
    logits: tuple[float, float],
    tasks_T: NDArray[np.float64],
    num_seeds: int,
    shared_S: NDArray[np.float64] | float = 0.0,
) -> list[Outcomes]:
    """The plays of a setting's runs on tasks of these difficulties. `shared_S`, in logits: of the
    model that a run began from, which a run of another setting may share."""
    mean, over_seeds = logits
    shape = (num_seeds, len(tasks_T))
    own_T = rng.normal(size=len(tasks_T)) * OWN
    seeds_S = rng.normal(size=num_seeds) * over_seeds + shared_S
    logits_ST = mean + tasks_T + own_T + seeds_S[:, None] + rng.normal(size=shape) * INTERPLAY
    played_ST = rng.random(shape) < special.expit(logits_ST)
    return [{str(task): float(success) for task, success in enumerate(row)} for row in played_ST]


def verdict_on(first: Sequence[Outcomes], second: Sequence[Outcomes], truth: float) -> tuple[bool, bool]:
    """Two flags: the two are called different, and the interval covers the truth."""
    found = difference(first, second)
    return found.decision in (Decision.BETTER, Decision.WORSE), found.low <= truth <= found.high


def main() -> None:
    parser = argparse.ArgumentParser("benchmarks.verdicts", description="The verdict on settings whose truth is known.")
    parser.add_argument("--num", type=int, default=1000, help="simulations of each kind")
    num = parser.parse_args().num
    print(f"{processor_kind()}; {num} simulations each, success 80 %; of settings that are equal, and 8 points apart")
    print(f"{'seeds':>5} {'tasks':>5} {'spread':>6} {'called different':>16} {'covers':>7} {'finds':>6}")
    for num_seeds, num_tasks, spread in [(3, 30, 0.03), (5, 30, 0.03), (3, 480, 0.03), (5, 480, 0.03), (5, 480, 0.0)]:
        rng = np.random.default_rng([num_seeds, num_tasks])
        baseline, better = (SimulatedSetting(success, spread).logits() for success in (0.8, 0.88))
        count = np.zeros(3)
        for _ in range(num):
            tasks_T = rng.normal(size=num_tasks) * DIFFICULTY
            first, equal, other = (simulated_runs(rng, one, tasks_T, num_seeds) for one in (baseline, baseline, better))
            count += (*verdict_on(first, equal, 0.0), verdict_on(first, other, 0.08)[0])
        called, covers, finds = (f"{100 * share:.1f} %" for share in count / num)
        print(f"{num_seeds:5} {num_tasks:5} {spread:6.0%} {called:>16} {covers:>7} {finds:>6}", flush=True)


if __name__ == "__main__":
    main()
