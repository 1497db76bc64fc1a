"""Quality of a reward model on held-out tasks: accuracy, calibration, best of n. Pure functions of
scores.

Two baselines only count, tokens and turns: it is to know more. Each may choose its direction on the
training pairs, so that it is as strong as counting can be.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np

from posttrain.evals.significance import share_interval

NUM_BINS = 5


@dataclass(frozen=True, slots=True)
class ReliabilityBin:
    """Pairs whose winner was predicted with a probability in [low, high): how many, mean
    confidence, how often right."""

    low: float
    high: float
    num_pairs: int
    confidence: float
    accuracy: float


class RewardBench(TypedDict):
    """Share of tasks in which a right episode is scored above three wrong ones, chance .25
    (RewardBench 2, arXiv 2506.01937), and of how many tasks."""

    num_tasks: int
    accuracy: float | None  # None without such a task


class BestOf(TypedDict):
    """Success when one episode of each group of `num_samples` is taken: the one scored highest,
    one at random, the first, a right one if there is."""

    num_groups: int
    picked: float
    random: float
    first: float
    oracle: float


def pair_accuracy(margins_N: Sequence[float]) -> float:
    """Share of pairs with a positive margin, an equal score counting half; NaN without pairs.
    Margins 2, -1, 0, 3: 2.5 / 4."""
    margins = np.asarray(margins_N, dtype=np.float64)
    # a model that gives every episode one score is as good as a coin
    return float((margins > 0).mean() + (margins == 0).mean() / 2) if len(margins) else math.nan


def accuracy_interval(margins_N: Sequence[float], tasks_N: Sequence[str]) -> tuple[float, float]:
    """Wilson's interval of the pair accuracy at 95 %, for as many independent pairs as would vary
    as much: pairs of one task are right or wrong together. NaN without pairs."""
    is_right_N = (np.asarray(margins_N) > 0) + (np.asarray(margins_N) == 0) / 2
    if not len(is_right_N):
        return math.nan, math.nan
    share, tasks = float(is_right_N.mean()), sorted(set(tasks_N))
    residuals = dict.fromkeys(tasks, 0.0)
    for task, is_right in zip(tasks_N, is_right_N, strict=True):
        residuals[task] += float(is_right) - share
    num = len(tasks)
    variance = sum(one**2 for one in residuals.values()) / len(is_right_N) ** 2 * num / max(1, num - 1)
    num_effective = share * (1 - share) / variance if variance > 0 else num
    num_effective = min(max(1, round(num_effective)), len(is_right_N))
    return share_interval(share * num_effective, num_effective)


def counting_accuracy(train_differences_N: Sequence[float], held_out_differences_N: Sequence[float]) -> float:
    """Pair accuracy of a count; differences are the better's minus the worse's, and the sign
    that is right more often on the training pairs is taken."""
    # chosen on the training pairs alone: on the held-out ones it would be a peek
    sign = 1.0 if pair_accuracy(train_differences_N) >= 0.5 else -1.0
    return pair_accuracy([sign * difference for difference in held_out_differences_N])


def reliability(margins_N: Sequence[float]) -> list[ReliabilityBin]:
    """`NUM_BINS` equal bins, from 0.5 to 1, of the predicted winner's probability
    sigmoid(|margin|); no empty ones."""
    margins = np.asarray(margins_N, dtype=np.float64)
    confidences = 1 / (1 + np.exp(-np.abs(margins)))
    # a confidence of exactly 1 belongs to the last bin
    places = np.minimum(((confidences - 0.5) * 2 * NUM_BINS).astype(int), NUM_BINS - 1)
    edges = np.linspace(0.5, 1.0, NUM_BINS + 1)
    return [
        ReliabilityBin(
            low=round(float(edges[place]), 2),
            high=round(float(edges[place + 1]), 2),
            num_pairs=int((places == place).sum()),
            confidence=float(confidences[places == place].mean()),
            accuracy=pair_accuracy(margins[places == place].tolist()),
        )
        for place in range(NUM_BINS)
        if (places == place).any()
    ]


def expected_calibration_error(bins: Sequence[ReliabilityBin]) -> float:
    """Mean over pairs of how far a bin's accuracy is from its confidence (arXiv 1706.04599, eq. 3):
    bins of 3 pairs off by 0.1 and 1 off by 0.3 give
    0.15. NaN without pairs."""
    total = sum(found.num_pairs for found in bins)
    return (
        sum(found.num_pairs * abs(found.accuracy - found.confidence) for found in bins) / total if total else math.nan
    )


def reward_bench(scores_P_K: Sequence[Sequence[float]], success_P_K: Sequence[Sequence[bool]]) -> RewardBench:
    """Over all choices of a right and three wrong episodes of a task, and the mean over tasks that
    have them. Scores 3, 1, 2, 0, 0 of one right and four wrong: 1."""
    shares = []
    for scores, successes in zip(scores_P_K, success_P_K, strict=True):
        right, wrong = (
            np.array([one for one, is_good in zip(scores, successes, strict=True) if is_good == side])
            for side in (True, False)
        )
        if len(right) and len(wrong) >= 3:
            shares.append(np.mean([math.comb(int((wrong < one).sum()), 3) for one in right]) / math.comb(len(wrong), 3))
    return RewardBench(num_tasks=len(shares), accuracy=float(np.mean(shares)) if shares else None)


def best_of(
    scores_P_K: Sequence[Sequence[float]], success_P_K: Sequence[Sequence[bool]], *, num_samples: int
) -> BestOf:
    """Each task's K episodes are cut into groups of `num_samples`, what is left over unused; of
    equal scores the first is picked. Scores 0.1, 0.9 and successes no, yes: picked 1, random
    0.5, first 0, oracle 1."""
    groups = [
        (
            np.asarray(scores[start : start + num_samples]),
            np.asarray(successes[start : start + num_samples], dtype=np.float64),
        )
        for scores, successes in zip(scores_P_K, success_P_K, strict=True)
        for start in range(0, len(scores) - num_samples + 1, num_samples)
    ]
    if not groups:
        raise ValueError(f"{len(scores_P_K)} tasks, none with {num_samples} episodes; sample more episodes per task")
    return BestOf(
        num_groups=len(groups),
        picked=float(np.mean([successes[int(scores.argmax())] for scores, successes in groups])),
        random=float(np.mean([successes.mean() for _, successes in groups])),
        first=float(np.mean([successes[0] for _, successes in groups])),
        oracle=float(np.mean([successes.max() for _, successes in groups])),
    )
