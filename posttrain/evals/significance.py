"""Tests whether the difference of two settings is more than chance: the project's one verdict.

A setting is run from several training seeds, and each run is evaluated on the same held-out tasks.
So success has two sources of chance that cross: the seeds, which are a setting's own, and the
tasks, which both settings share. An interval over tasks alone takes a lucky seed for an
improvement; one over seeds alone forgets that other tasks would have been solved. Here both count.
Where the runs of two settings come in pairs that share a seed's model, `paired_difference` counts
only what the pair does not share.

The variance of the difference is the sum of its components in a crossed random-effects model,
estimated by their mean squares (Searle, Casella and McCulloch, Variance Components, 1992, chapter
4), and its degrees of freedom are Satterthwaite's (Biometrics 2, 1946). Resampling seeds and tasks
with replacement, the pigeonhole bootstrap (Owen, Annals of Applied Statistics 1, 2007), estimates
the same sum, but of three seeds it draws too narrow an interval: `benchmarks/verdicts.py` has both.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special  # scipy.stats has the same under longer names, and takes a second to import

from posttrain.runtime.exits import DataError

LEVEL = 0.95
MARGIN = 0.05  # a smaller difference does not matter to anyone
_POWER = 0.8
_MAX_MORE_SEEDS, _MAX_MORE_TASKS = 20, 10_000  # more is no advice

Outcomes = Mapping[str, float]  # of one run: success, 0 to 1, by the content hash of its task


class Decision(StrEnum):
    """Result of a comparison. TIED: a difference as large as the margin would have been seen."""

    BETTER = "better"
    WORSE = "worse"
    TIED = "tied"
    NEEDS_MORE = "needs more"


@dataclass(frozen=True, slots=True)
class Spread:
    """Standard deviation of success over training seeds of one setting, and the number of seeds
    that it is an estimate from."""

    sd: float
    num_seeds: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """The success of one setting less that of a baseline, with its interval and decision.

    `low` and `high` bound it at LEVEL; where each has one run and no spread over seeds is known,
    they reflect tasks only, and `is_of_runs_only` says so. `p_value` is two-sided. `smallest_shown`
    is the difference that as many seeds and tasks would have shown with a chance of 80 %. Of
    NEEDS_MORE, `num_more_seeds` of each setting would show the larger of `estimate` and the margin,
    or `num_more_tasks` would; both are None where no reasonable number does.
    """

    decision: Decision
    estimate: float
    low: float
    high: float
    p_value: float
    smallest_shown: float
    num_tasks: int
    num_seeds: tuple[int, int]
    is_of_runs_only: bool = False
    num_more_seeds: int | None = None
    num_more_tasks: int | None = None

    @property
    def advice(self) -> str:
        """The decision, with how many more seeds or tasks where more are needed."""
        if self.decision is not Decision.NEEDS_MORE:
            return str(self.decision)
        if self.num_more_seeds is not None:
            return f"needs {self.num_more_seeds} more {'seed' if self.num_more_seeds == 1 else 'seeds'}"
        if self.num_more_tasks is not None:
            return f"needs {self.num_more_tasks:,} more tasks"
        return "needs more seeds and tasks"


@dataclass(frozen=True, slots=True)
class _Variances:
    """Variance components. Of a run's success: `over_seeds` of one setting. Of one task:
    `over_tasks`, how differently two settings fare on it, and `rest`, what is left of a single
    episode. For pairs (`is_paired`) `over_seeds` is of a pair's difference, and `rest` of one
    difference of episodes."""

    over_seeds: float
    over_tasks: float
    rest: float
    is_paired: bool = False

    def smallest_shown(self, num_seeds: tuple[Any, Any], num_tasks: Any) -> Any:
        """The difference that so many seeds and tasks would show; arrays are broadcast."""
        share = 1 / num_seeds[0] + (0 if self.is_paired else 1 / num_seeds[1])
        of_tasks = (self.over_tasks + self.rest * share) / num_tasks
        of_seeds = self.over_seeds * share
        variance = of_tasks + of_seeds
        # Satterthwaite's degrees of freedom of a sum of two components, at least 1 of seeds.
        of_freedom = np.maximum(num_seeds[0] - 1 if self.is_paired else num_seeds[0] + num_seeds[1] - 2, 1)
        freedom = variance**2 / (of_tasks**2 / (num_tasks - 1) + of_seeds**2 / of_freedom)
        return _smallest_shown(variance, freedom)


def difference(
    baseline: Sequence[Outcomes],
    other: Sequence[Outcomes],
    *,
    spread: Spread | None = None,
    margin: float = MARGIN,
    is_one_setting: bool = False,
) -> Verdict:
    """Compare two settings by their runs, one for each training seed, on the tasks that all runs
    have.

    Where each has a single run, `spread` stands for the seeds that were not run. A setting with one
    run is never called better or worse: it may have been lucky. Two runs of one setting
    (`is_one_setting`: they differ in the seed and in nothing else) are TIED. Raises DataError where
    a setting has no run, or no two tasks are common to all.
    """
    first, second = _on_common_tasks(baseline, other)
    num_seeds, num_tasks = (len(first), len(second)), first.shape[1]
    share = 1 / num_seeds[0] + 1 / num_seeds[1]
    estimate = float(second.mean() - first.mean())

    of_tasks = _of_tasks(second.mean(0) - first.mean(0), max(num_seeds))
    of_episodes = sum(_rest(runs) / len(runs) for runs in (first, second)) / num_tasks
    of_seeds = _of_seeds(first, second, spread)
    variance, freedom = _variance(of_tasks, of_seeds, of_episodes)
    found = _figures(estimate, variance, freedom, num_tasks, num_seeds, is_of_runs_only=not of_seeds)
    variances = _Variances(
        over_seeds=(variance - of_tasks[0]) / share,
        over_tasks=max(0.0, of_tasks[0] - of_episodes) * num_tasks,
        rest=of_episodes * num_tasks / share,
    )
    return found if is_one_setting else _decided(found, variances, margin)


def paired_difference(baseline: Sequence[Outcomes], other: Sequence[Outcomes], *, margin: float = MARGIN) -> Verdict:
    """Compare two settings whose runs are pairs: `baseline[s]` and `other[s]` began from the same
    model, that of seed s, whose effect on both favours neither.

    On task t the pair of seed s differs by d_st, -1, 0 or 1: the mean difference, an effect of the
    pair, one of the task, and a rest. The effect of the seed's model on both is in none of them:
    with y = m + a_s + …, d_st = y2_st - y1_st has no a_s. So the table d (S, T) is one of a crossed
    random-effects model by itself, and the variance of its mean is, by mean squares, (MS_pairs +
    MS_tasks - MS_rest) / (S T), where MS_pairs / (S T) is the variance of the S means of pairs over
    S, and MS_tasks / (S T) that of the T means of tasks over T. Its degrees of freedom are
    Satterthwaite's of S - 1 and T - 1, and for them MS_pairs counts at least MS_rest, which it is
    expected to be where pairs do not differ: else two pairs that lie close by chance would pass for
    hundreds of tasks, and one of ten equal settings for another.

    Two seeds and two tasks, baseline ((0, 1), (1, 1)) and other ((1, 1), (1, 1)): d is ((1, 0), (0,
    0)), estimate 1/4. A single pair is never called better or worse. Raises DataError where the
    numbers of runs differ, and as `difference`.
    """
    if len(baseline) != len(other):
        raise DataError(f"{len(baseline)} runs and {len(other)} are no pairs: give the runs of both for each seed")
    first, second = _on_common_tasks(baseline, other)
    by_pair_S_T = second - first
    num_seeds, num_tasks = by_pair_S_T.shape
    of_tasks = _of_tasks(by_pair_S_T.mean(0), num_seeds)
    of_episodes = _rest(by_pair_S_T) / num_seeds / num_tasks
    of_seeds = [(float(by_pair_S_T.mean(1).var(ddof=1)) / num_seeds, num_seeds - 1)] if num_seeds > 1 else []
    variance, _ = _variance(of_tasks, of_seeds, of_episodes)
    # MS_pairs counts at least MS_rest here; see the docstring.
    freedom = _freedom(variance, [of_tasks, *((max(part, of_episodes), num) for part, num in of_seeds)])
    estimate = float(by_pair_S_T.mean())
    found = _figures(estimate, variance, freedom, num_tasks, (num_seeds, num_seeds), is_of_runs_only=not of_seeds)
    variances = _Variances(
        over_seeds=(variance - of_tasks[0]) * num_seeds,
        over_tasks=max(0.0, of_tasks[0] - of_episodes) * num_tasks,
        rest=of_episodes * num_tasks * num_seeds,
        is_paired=True,
    )
    return _decided(found, variances, margin)


def corrected(differences: Sequence[Verdict]) -> list[Verdict]:
    """Correct a family of comparisons: p-values by Holm (Scandinavian Journal of Statistics 6,
    1979), so that with a chance of LEVEL none of them calls equal settings different. Intervals
    stay those of each alone."""
    order = sorted(range(len(differences)), key=lambda index: differences[index].p_value)
    # Holm: the i-th smallest of n p-values times n - i, and never below an earlier one.
    largest, family = 0.0, list(differences)
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * differences[index].p_value))
        family[index] = replace(differences[index], p_value=largest)
        if family[index].decision in (Decision.BETTER, Decision.WORSE) and largest >= 1 - LEVEL:
            family[index] = replace(family[index], decision=Decision.NEEDS_MORE, num_more_seeds=1)
    return family


def spread_over(success_rates: Sequence[float]) -> Spread | None:
    """The spread of one setting's runs; None for fewer than two."""
    if len(success_rates) < 2:
        return None
    return Spread(float(np.std(success_rates, ddof=1)), len(success_rates))


def _figures(
    estimate: float,
    variance: float,
    freedom: float,
    num_tasks: int,
    num_seeds: tuple[int, int],
    *,
    is_of_runs_only: bool,
) -> Verdict:
    """A verdict with its figures, not yet decided."""
    half_width = _half_width(variance, freedom)
    return Verdict(
        decision=Decision.TIED,
        estimate=estimate,
        low=max(-1.0, estimate - half_width),
        high=min(1.0, estimate + half_width),
        p_value=2 * float(special.stdtr(freedom, -abs(estimate) / math.sqrt(variance))),
        smallest_shown=float(_smallest_shown(variance, freedom)),
        num_tasks=num_tasks,
        num_seeds=num_seeds,
        is_of_runs_only=is_of_runs_only,
    )


def _decided(found: Verdict, variances: _Variances, margin: float) -> Verdict:
    if min(found.num_seeds) == 1:
        return _needs_more(found, variances, margin)
    if found.p_value < 1 - LEVEL:
        return replace(found, decision=Decision.BETTER if found.estimate > 0 else Decision.WORSE)
    return found if found.smallest_shown <= margin else _needs_more(found, variances, margin)


def _on_common_tasks(*settings: Sequence[Outcomes]) -> list[NDArray[np.float64]]:
    """Success (S, T) of each setting on the tasks that all runs have."""
    if not all(settings):
        raise DataError("a setting without a run cannot be compared")
    common = sorted(set.intersection(*(set(run) for runs in settings for run in runs)))
    if len(common) < 2:
        raise DataError(f"{len(common) or 'no'} tasks are common to all runs, and a comparison needs two or more")
    return [np.array([[run[task] for task in common] for run in runs], dtype=np.float64) for runs in settings]


def _of_tasks(by_task_T: NDArray[np.float64], num_seeds: int) -> tuple[float, int]:
    """Variance that the choice of tasks adds to the mean of `by_task_T`, with its degrees of
    freedom. At least what one episode of one task would add: where no task differs the next may."""
    num_tasks = len(by_task_T)
    return max(float(by_task_T.var(ddof=1)), 1 / num_seeds / (num_tasks - 1)) / num_tasks, num_tasks - 1


def _variance(
    of_tasks: tuple[float, int], of_seeds: Sequence[tuple[float, int]], of_episodes: float
) -> tuple[float, float]:
    """The variance and its degrees of freedom. An episode is of a seed and of a task: its share,
    `of_episodes`, is in both parts and counts once."""
    variance = of_tasks[0] + max(0.0, sum(part for part, _ in of_seeds) - of_episodes)
    return variance, _freedom(variance, [of_tasks, *of_seeds])


def _freedom(variance: float, parts: Sequence[tuple[float, int]]) -> float:
    """Satterthwaite's degrees of freedom of a sum of parts, and not below those of the part with
    the least."""
    freedom = variance**2 / sum(part**2 / num for part, num in parts)
    return max(freedom, min(num for _, num in parts))


def _half_width(variance: float, freedom: float) -> float:
    """Half the width of an interval at LEVEL."""
    return float(special.stdtrit(freedom, (1 + LEVEL) / 2)) * math.sqrt(variance)


def _rest(runs: NDArray[np.float64]) -> float:
    """Mean square of the rest that neither seed nor task explains; 0 for one run, which cannot
    tell."""
    num_seeds, num_tasks = runs.shape
    if num_seeds == 1:
        return 0.0
    # Two-way layout without interaction: residual mean square on (S - 1)(T - 1) degrees of freedom.
    residuals = runs - runs.mean(0) - runs.mean(1, keepdims=True) + runs.mean()
    return float((residuals**2).sum() / ((num_seeds - 1) * (num_tasks - 1)))


def _of_seeds(
    first: NDArray[np.float64], second: NDArray[np.float64], spread: Spread | None
) -> list[tuple[float, int]]:
    """Variance that the choice of seeds adds to the difference, in parts with their degrees of
    freedom; empty where it is unknown. A setting with one run is taken to spread as the other."""
    several = [runs for runs in (first, second) if len(runs) > 1]
    if len(several) == 2:
        return [(float(runs.mean(1).var(ddof=1)) / len(runs), len(runs) - 1) for runs in several]
    share = 1 / len(first) + 1 / len(second)
    for runs in several:
        return [(float(runs.mean(1).var(ddof=1)) * share, len(runs) - 1)]
    return [(spread.sd**2 * share, spread.num_seeds - 1)] if spread is not None else []


def _smallest_shown(variance: Any, freedom: Any) -> Any:
    return (special.stdtrit(freedom, (1 + LEVEL) / 2) + special.stdtrit(freedom, _POWER)) * np.sqrt(variance)


def _needs_more(found: Verdict, variances: _Variances, margin: float) -> Verdict:
    """Decide NEEDS_MORE, with how many more seeds, or else tasks, would show the difference, or one
    of `margin`."""
    wanted = max(abs(found.estimate), margin)
    found = replace(found, decision=Decision.NEEDS_MORE)
    more = np.arange(1, _MAX_MORE_SEEDS + 1)
    num_seeds = found.num_seeds[0] + more, found.num_seeds[1] + more
    if (enough := more[variances.smallest_shown(num_seeds, found.num_tasks) <= wanted]).size:
        return replace(found, num_more_seeds=int(enough[0]))
    for more in np.array_split(np.arange(10, _MAX_MORE_TASKS + 1, 10), 10):  # mostly the first will do
        if (enough := more[variances.smallest_shown(found.num_seeds, found.num_tasks + more) <= wanted]).size:
            return replace(found, num_more_tasks=int(enough[0]))
    return found


def share_interval(num_successes: float, num: int) -> tuple[float, float]:
    """The interval of a share at LEVEL, by Wilson (JASA 22, 1927): of 0 among 8 from 0 to 32 %, not
    from 0 to 0. A part of a success counts as such. Raises ValueError where `num` is 0."""
    if num < 1:
        raise ValueError("a share of nothing has no interval")
    z = float(special.ndtri((1 + LEVEL) / 2))
    share, scale = num_successes / num, 1 + z**2 / num
    middle = share + z**2 / (2 * num)
    half_width = z * math.sqrt(share * (1 - share) / num + z**2 / (4 * num**2))
    return max(0.0, (middle - half_width) / scale), min(1.0, (middle + half_width) / scale)


def difference_of_shares(before: Sequence[bool], after: Sequence[bool]) -> tuple[float, float, float]:
    """Share of `after` less that of `before`, independent plays, with its interval at LEVEL by
    Newcombe (Statistics in Medicine 17, 1998, method 10): of 0 in 8 and 8 in 8, 1 from .54 to 1."""
    first, second = sum(before) / len(before), sum(after) / len(after)
    low_1, high_1 = share_interval(sum(before), len(before))
    low_2, high_2 = share_interval(sum(after), len(after))
    low = second - first - math.hypot(second - low_2, high_1 - first)
    high = second - first + math.hypot(high_2 - second, first - low_1)
    return second - first, max(-1.0, low), min(1.0, high)


def mean_interval(runs: Sequence[Outcomes]) -> tuple[float, float, float]:
    """A setting's mean success over seeds and tasks, with its interval at LEVEL: Wilson's for one
    run, which reflects tasks only. Raises DataError where there is no run, or no two tasks are
    common to all."""
    (outcomes,) = _on_common_tasks(runs)
    num_seeds, num_tasks = outcomes.shape
    mean = float(outcomes.mean())
    if num_seeds == 1:
        return mean, *share_interval(mean * num_tasks, num_tasks)
    of_seeds = (float(outcomes.mean(1).var(ddof=1)) / num_seeds, num_seeds - 1)
    half_width = _half_width(
        *_variance(_of_tasks(outcomes.mean(0), num_seeds), [of_seeds], _rest(outcomes) / num_seeds / num_tasks)
    )
    return mean, max(0.0, mean - half_width), min(1.0, mean + half_width)
