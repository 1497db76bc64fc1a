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
