"""A problem of two turns that is small enough to be enumerated: every group that a policy can play,
with its probability, so that an expected gradient is a sum and not an estimate.

The agent first stops, or goes on to one of two second turns; there it chooses again. Rewards are of
whole episodes; turns that did a call have a score besides. The policy is a table of logits.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from posttrain.train.advantages.groups import Group, Turn

# first action -> second actions; the reward of each way through
REWARDS = {(0,): 0.3, (1, 0): 1.0, (1, 1): 0.0, (2, 0): 0.6, (2, 1): 0.9}
LOGITS = np.array([0.4, -0.3, 0.2, 0.5, -0.1, -0.6, 0.3])  # 3 of the first turn, then 2 behind 1 and 2 behind 2
# of each turn its score: to stop calls nothing, 1 calls in the second turn, 2 in both
TURN_SCORES = {(0,): (None,), (1, 0): (None, 1.0), (1, 1): (None, 0.25), (2, 0): (0.5, 0.125), (2, 1): (0.5, 0.875)}
_PLACES = {(0,): (0,), (1, 0): (1, 3), (1, 1): (1, 4), (2, 0): (2, 5), (2, 1): (2, 6)}
_SETS = ((0, 3), (3, 5), (5, 7))  # logits of one choice

Advantages = Callable[[np.ndarray, Sequence[int]], Sequence[Sequence[float]]]


@dataclass(frozen=True)
class Way:
    """One episode: its probability, its reward, of each turn the gradient of log p, and the turns
    of one token each, whose state is what was done before."""

    probability: float
    reward: float
    scores: tuple[np.ndarray, ...]
    turns: tuple[Turn, ...]


def group_of(members: Sequence[Way]) -> Group:
    rewards_G = np.array([way.reward for way in members])
    return Group("t", rewards_G, rewards_G == 1, [way.turns for way in members])


def ways(logits: np.ndarray = LOGITS) -> list[Way]:
    probabilities = np.concatenate([_softmax(logits[start:end]) for start, end in _SETS])
    return [
        Way(
            float(np.prod([probabilities[place] for place in places])),
            REWARDS[path],
            tuple(_score(place, probabilities) for place in places),
            tuple(Turn(1, f"after {path[:turn]}", TURN_SCORES[path][turn]) for turn in range(len(path))),
        )
        for path, places in _PLACES.items()
    ]


def true_gradient(logits: np.ndarray = LOGITS) -> np.ndarray:
    """Gradient of the expected reward."""
    return sum(way.probability * way.reward * sum(way.scores) for way in ways(logits))


def sum_over_ways(of_turn: Callable[[Way, int], float]) -> np.ndarray:
    """Expectation over one episode of the sum over turns of a number times the gradient of log
    p."""
    return sum(way.probability * of_turn(way, turn) * score for way in ways() for turn, score in enumerate(way.scores))


def expected_gradient(group_size: int, advantages: Advantages) -> np.ndarray:
    """Expectation of the mean over a group of the sum over turns of advantage times the gradient of
    log p. `advantages(rewards_G, num_turns_G)` gives a number for each turn of each episode."""
    return expected_of_ways(
        group_size,
        lambda members: advantages(np.array([way.reward for way in members]), [len(way.scores) for way in members]),
    )


def expected_of_ways(group_size: int, advantages: Callable[[Sequence[Way]], Sequence[Sequence[float]]]) -> np.ndarray:
    """The same of advantages that see the members themselves."""
    total = np.zeros(len(LOGITS))
    for members in _groups(group_size):
        step = sum(
            advantage * score
            for way, of_turns in zip(members, advantages(members), strict=True)
            for advantage, score in zip(of_turns, way.scores, strict=True)
        )
        total += np.prod([way.probability for way in members]) * step / group_size
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
