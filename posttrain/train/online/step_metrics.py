"""Defines the metrics of every step of learning online. Numbers about the episodes just played,
under definitions that stay the same."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from posttrain.evals.groups import Group, group_metrics
from posttrain.train.advantages.groups import FloatArray
from posttrain.types import ScoredEpisode
from posttrain.worlds.made_calls import agent_messages
from posttrain.worlds.tools import is_error


def step_metrics(
    played_PG: Sequence[ScoredEpisode], *, rule_rewards_P_G: FloatArray, is_lost_P_G: NDArray[np.bool_]
) -> dict[str, float]:
    """The group metrics of the rule rewards, and of the episodes: `strict_success` and `success`
    (shares), `turns` (agent messages per episode), `tool_failures` (share of tool results that are
    errors, 0 where no tool was called), `length` (agent tokens per episode) and `entropy` in nats
    per token. `lost` is the share of episodes that were lost; all others are about those that were
    not.

    `entropy` is estimated from the samples as the mean of -log p over the agent's tokens, p being
    the distribution sampled from; at temperature 1 its expectation is the policy's entropy.
    """
    is_kept_P_G = ~is_lost_P_G
    kept = [played for played in played_PG if not played.is_lost]
    trajectories_PG = [played.trajectory for played in kept]
    successes_P_G = np.array([played.is_success for played in played_PG]).reshape(rule_rewards_P_G.shape)
    rows = zip(rule_rewards_P_G, successes_P_G, is_kept_P_G, strict=True)
    groups = [
        Group(rewards[is_kept].tolist(), successes[is_kept].tolist())
        for rewards, successes, is_kept in rows
        if is_kept.sum() > 1
    ]
    lengths = [sum(trajectory.mask) for trajectory in trajectories_PG]
    results = [
        message.content for trajectory in trajectories_PG for message in trajectory.messages if message.role == "tool"
    ]
    turns = [len(agent_messages(trajectory)) for trajectory in trajectories_PG]
    return {
        **group_metrics(groups),
        "strict_success": float(np.mean([played.trajectory.is_strict_success for played in kept])),
        "success": float(np.mean([played.is_success for played in kept])),
        "turns": float(np.mean(turns)),
        "tool_failures": sum(map(is_error, results)) / len(results) if results else 0.0,
        "length": float(np.mean(lengths)),
        "lost": float(is_lost_P_G.mean()),
        "entropy": -sum(sum(trajectory.logprobs) for trajectory in trajectories_PG) / max(sum(lengths), 1),
    }


def kl_estimate(policy_logprobs: Sequence[float], reference_logprobs: Sequence[float]) -> float:
    """Mean over tokens of r - 1 - log r with r = p_reference / p_policy, in nats per token: an
    unbiased estimate of KL(policy || reference) from the policy's samples that is never negative
    (the k3 of http://joschu.net/blog/kl-approx.html). Policy 1/2, reference 1/4: 1/2 - 1 + ln 2 =
    0.193.
    """
    log_ratio = np.asarray(reference_logprobs, dtype=np.float64) - np.asarray(policy_logprobs, dtype=np.float64)
    return float(np.mean(np.exp(log_ratio) - 1 - log_ratio))
