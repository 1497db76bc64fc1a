"""Selects which of the policy's own episodes are learnt from, and how often each."""

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from posttrain.train.advantages.groups import FloatArray
from posttrain.train.rejection_sampling.params import (
    AcceptByReward,
    AcceptQuantile,
    AcceptStrict,
    AcceptSuccess,
    RejectionSamplingParams,
)
from posttrain.types import ScoredEpisode


def row_weights(episodes: Sequence[ScoredEpisode], params: RejectionSamplingParams) -> FloatArray:
    """Share of the training rows that each episode is, shape (N,): 0 where it is not accepted; they
    sum to 1, or are all 0 where none is.

    Of a task with 3 of 4 right and one with 1 of 4: balanced by episode 1/4 each; by task 1/6, 1/6,
    1/6 and 1/2; by difficulty the same, as both are one away from 2 of 4.
    """
    accepted_N = _accepted(episodes, params)
    if params.per_task == "likeliest":
        accepted_N = _likeliest_only(episodes, accepted_N)
    if params.balance != "episode":
        accepted_N = _by_task(episodes, accepted_N, params)
    total = accepted_N.sum()
    return accepted_N / total if total else accepted_N


def _accepted(episodes: Sequence[ScoredEpisode], params: RejectionSamplingParams) -> FloatArray:
    """Weights (N,) of the episodes by themselves. Nothing of an aborted one is learnt."""
    is_whole_N = np.array([not one.is_aborted and any(one.trajectory.mask) for one in episodes], dtype=bool)
    rewards_N = np.array([one.rule_reward + one.bonus for one in episodes])
    match params.accept:
        case AcceptSuccess():
            weights_N = np.array([one.is_success for one in episodes], dtype=float)
        case AcceptStrict():
            weights_N = np.array([one.trajectory.is_strict_success for one in episodes], dtype=float)
        case AcceptQuantile(quantile=quantile):
            whole = rewards_N[is_whole_N]
            least, lowest = (np.quantile(whole, quantile), whole.min()) if len(whole) else (0.0, 0.0)
            weights_N = ((rewards_N >= least) & (rewards_N > lowest)).astype(float)
        case AcceptByReward(temperature=temperature):
            highest = rewards_N[is_whole_N].max(initial=-math.inf)  # taken off, so that no exp overflows
            weights_N = np.exp(np.minimum(rewards_N - highest, 0) / temperature)
    return np.where(is_whole_N, weights_N, 0.0)


def _likeliest_only(episodes: Sequence[ScoredEpisode], accepted_N: FloatArray) -> FloatArray:
    """For each task the accepted episode of the highest mean log-probability, the first of equal
    ones."""
    kept_N = np.zeros_like(accepted_N)
    for places in _places_by_task(episodes).values():
        if accepted := [place for place in places if accepted_N[place]]:
            best = max(accepted, key=lambda place: _mean_logprob(episodes[place]))
            kept_N[best] = accepted_N[best]
    return kept_N


def _by_task(episodes: Sequence[ScoredEpisode], accepted_N: FloatArray, params: RejectionSamplingParams) -> FloatArray:
    weights_N = np.zeros_like(accepted_N)
    for places in _places_by_task(episodes).values():
        if total := accepted_N[places].sum():
            played = [episodes[place] for place in places if not episodes[place].is_aborted]
            right = sum(one.is_success for one in played)
            is_by_difficulty = params.balance == "difficulty"
            share = math.exp(-((right - len(played) / 2) ** 2) / 2) if is_by_difficulty else 1.0
            weights_N[places] = share * accepted_N[places] / total
    return weights_N


def _places_by_task(episodes: Sequence[ScoredEpisode]) -> dict[str, list[int]]:
    places = defaultdict(list)
    for place, one in enumerate(episodes):
        places[one.trajectory.task_id].append(place)
    return places


def _mean_logprob(episode: ScoredEpisode) -> float:
    trajectory = episode.trajectory
    return sum(trajectory.logprobs) / max(sum(trajectory.mask), 1)
