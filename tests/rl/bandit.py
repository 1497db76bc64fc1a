"""A problem of two turns that is small enough to be enumerated: every group that a policy can play,
with its probability, so that an expected gradient is a sum and not an estimate.

The agent first stops, or goes on to one of two second turns; there it chooses again. Rewards are of
whole episodes. The policy is a table of logits.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

# first action -> second actions; the reward of each way through
REWARDS = {(0,): 0.3, (1, 0): 1.0, (1, 1): 0.0, (2, 0): 0.6, (2, 1): 0.9}
LOGITS = np.array([0.4, -0.3, 0.2, 0.5, -0.1, -0.6, 0.3])  # 3 of the first turn, then 2 behind 1 and 2 behind 2
_PLACES = {(0,): (0,), (1, 0): (1, 3), (1, 1): (1, 4), (2, 0): (2, 5), (2, 1): (2, 6)}
_SETS = ((0, 3), (3, 5), (5, 7))  # logits of one choice

Advantages = Callable[[np.ndarray, Sequence[int]], Sequence[Sequence[float]]]


@dataclass(frozen=True)
class Way:
    """One episode: its probability, its reward, and of each turn the gradient of log p."""

    probability: float
    reward: float
    scores: tuple[np.ndarray, ...]


def ways(logits: np.ndarray = LOGITS) -> list[Way]:
    probabilities = np.concatenate([_softmax(logits[start:end]) for start, end in _SETS])
    return [
        Way(
            float(np.prod([probabilities[place] for place in places])),
            REWARDS[path],
            tuple(_score(place, probabilities) for place in places),
        )
        for path, places in _PLACES.items()
    ]


def true_gradient(logits: np.ndarray = LOGITS) -> np.ndarray:
    """Of the expected reward."""
    return sum(way.probability * way.reward * sum(way.scores) for way in ways(logits))


def expected_gradient(group_size: int, advantages: Advantages) -> np.ndarray:
    """Of the mean over a group of the sum over turns of advantage times the gradient of log p.
    `advantages(rewards_G, num_turns_G)` gives a number for each turn of each episode."""
    total = np.zeros(len(LOGITS))
    for group in _groups(group_size):
        rewards_G = np.array([way.reward for way in group])
        given = advantages(rewards_G, [len(way.scores) for way in group])
        step = sum(
            advantage * score
            for way, of_turns in zip(group, given, strict=True)
            for advantage, score in zip(of_turns, way.scores, strict=True)
        )
        total += np.prod([way.probability for way in group]) * step / group_size
    return total


def _groups(group_size: int) -> Iterator[tuple[Way, ...]]:
    return itertools.product(ways(), repeat=group_size)


def _score(place: int, probabilities: np.ndarray) -> np.ndarray:
    start, end = next((start, end) for start, end in _SETS if start <= place < end)
    score = np.zeros(len(LOGITS))
    score[start:end] = -probabilities[start:end]
    score[place] += 1
    return score


def _softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max())
    return powers / powers.sum()
