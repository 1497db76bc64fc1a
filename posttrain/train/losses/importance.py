"""Truncated importance weights for tokens that were sampled by other weights than those that train.

An engine rounds in other places than the trainer, and one that generates ahead has older weights.
Each token's gradient is multiplied by p_trainer / p_engine, at most `cap`: without the cap the
expectation would be right and the variance without bound (truncated importance sampling, Ionides
2008; for RL of language models https://fengyao.notion.site/off-policy-rl).
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def importance_weights(trainer_logprobs: Tensor, engine_logprobs: Tensor, *, cap: float) -> Tensor:
    """min(exp(trainer - engine), cap), of the shape of both. Log-probs -1 and -2 give e, so 2 under
    a cap of 2; -2 and -1 give 1/e."""
    return torch.exp(trainer_logprobs - engine_logprobs).clamp(max=cap)


def turn_numbers(is_scored_N_T: Tensor) -> Tensor:
    """The turn that each scored token belongs to, from 1 on, shape (N, T): 0 1 1 0 1 scored gives
    turns 1, 1 and 2 at its ones."""
    is_first_N_T = is_scored_N_T & ~torch.nn.functional.pad(is_scored_N_T, (1, -1))
    return is_first_N_T.cumsum(1)


def importance_metrics(log_ratios: Sequence[float], turns: Sequence[int], *, cap: float) -> dict[str, float]:
    """Metrics of log(p_trainer / p_engine) over a step's agent tokens: mean and largest weight,
    share of tokens at the cap, the largest |log ratio|, and `logprob_gap_turn`: the mean |log
    ratio| of all tokens of first turns, of second ones and so on, the largest of these.

    Log ratios 0 and 1 in turns 1 and 2 under a cap of 2: weights 1 and 2, mean 1.5, half of them
    capped, both gaps 1. No token: weights of 1.
    """
    ratios = np.asarray(log_ratios or [0.0], dtype=np.float64)
    gaps, in_turn = np.abs(ratios), np.asarray(turns or [1])
    weights = np.minimum(np.exp(ratios), cap)
    return {
        "importance_mean": float(weights.mean()),
        "importance_max": float(weights.max()),
        "importance_capped_frac": float(np.mean(np.exp(ratios) > cap)),
        "logprob_gap_max": float(gaps.max()),
        "logprob_gap_turn": max(float(gaps[in_turn == turn].mean()) for turn in np.unique(in_turn)),
    }
