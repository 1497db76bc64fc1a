"""Holds the verdict on two settings against settings whose truth is known, beside two other ways.

The tasks differ in difficulty, seeds of a setting lie apart, plays are drawn. Told of each way: how
often it calls equal settings different (at most 5 %), how often its interval covers the truth (at
least 93 %), how often it finds eight points. The other ways: the pigeonhole bootstrap, which draws
seeds and tasks with replacement; and to compare one run of each by intervals over its tasks that
have no point in common.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from posttrain.evals.significance import Decision, Outcomes, difference, share_interval
from posttrain.provenance.costs import processor_kind

DIFFICULTY, OWN, INTERPLAY = 2.0, 0.7, 1.0  # in logits: of a task, of a task under a setting, of a task under a seed
NUM_BOOTSTRAP = 400

Answer = tuple[bool, bool]  # called different; the interval covers the truth


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


def by_components(
    first: Sequence[Outcomes], second: Sequence[Outcomes], truth: float, _: np.random.Generator
) -> Answer:
    found = difference(first, second)
    return found.decision in (Decision.BETTER, Decision.WORSE), found.low <= truth <= found.high


def by_pigeonhole(
    first: Sequence[Outcomes], second: Sequence[Outcomes], truth: float, rng: np.random.Generator
) -> Answer:
    tables = [np.array([list(run.values()) for run in runs]) for runs in (first, second)]
    num_tasks = tables[0].shape[1]
    tasks_BT = rng.multinomial(num_tasks, np.full(num_tasks, 1 / num_tasks), size=NUM_BOOTSTRAP) / num_tasks
    means = []
    for table_ST in tables:
        num_seeds = len(table_ST)
        seeds_BS = rng.multinomial(num_seeds, np.full(num_seeds, 1 / num_seeds), size=NUM_BOOTSTRAP) / num_seeds
        means.append(((seeds_BS @ table_ST) * tasks_BT).sum(1))
    low, high = np.quantile(means[1] - means[0], [0.025, 0.975])
    return not low <= 0 <= high, bool(low <= truth <= high)


def by_tasks_of_one_run(
    first: Sequence[Outcomes], second: Sequence[Outcomes], _: float, __: np.random.Generator
) -> Answer:
    """It has no interval of the difference, so it covers nothing."""
    (low, high), (other_low, other_high) = (
        share_interval(sum(runs[0].values()), len(runs[0])) for runs in (first, second)
    )
    return other_low > high or other_high < low, False


WAYS: dict[str, Callable[[Sequence[Outcomes], Sequence[Outcomes], float, np.random.Generator], Answer]] = {
    "components": by_components,
    "pigeonhole bootstrap": by_pigeonhole,
    "intervals of one run": by_tasks_of_one_run,
}


def main() -> None:
    parser = argparse.ArgumentParser("benchmarks.verdicts", description="The verdict on settings whose truth is known.")
    parser.add_argument("--num", type=int, default=1000, help="simulations of each kind")
    num = parser.parse_args().num
    print(f"{processor_kind()}; {num} simulations each, success 80 %; of settings that are equal, and 8 points apart")
    print(f"{'seeds':>5} {'tasks':>5} {'spread':>6}  {'way':22} {'called different':>16} {'covers':>7} {'finds':>6}")
    for num_seeds, num_tasks, spread in [(3, 30, 0.03), (5, 30, 0.03), (3, 480, 0.03), (5, 480, 0.03), (5, 480, 0.0)]:
        rng = np.random.default_rng([num_seeds, num_tasks])
        baseline, better = (SimulatedSetting(success, spread).logits() for success in (0.8, 0.88))
        counts = {way: np.zeros(3) for way in WAYS}
        for _ in range(num):
            tasks_T = rng.normal(size=num_tasks) * DIFFICULTY
            first, equal, other = (simulated_runs(rng, one, tasks_T, num_seeds) for one in (baseline, baseline, better))
            for way, ask in WAYS.items():
                counts[way] += (*ask(first, equal, 0.0, rng), ask(first, other, 0.08, rng)[0])
        for way, count in counts.items():
            called, covers, finds = (f"{100 * share:.1f} %" for share in count / num)
            told = covers if way != "intervals of one run" else "none"
            print(f"{num_seeds:5} {num_tasks:5} {spread:6.0%}  {way:22} {called:>16} {told:>7} {finds:>6}", flush=True)


if __name__ == "__main__":
    main()
