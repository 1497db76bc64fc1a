"""What is written down at every step of group-relative learning? Numbers about the episodes just played, under definitions that stay the same."""

from collections.abc import Sequence

import numpy as np

from posttrain.algorithms.advantages import FloatArray
from posttrain.evals.groups import Group, frac_tokens_nonzero_advantage, group_metrics
from posttrain.types import Trajectory
from posttrain.worlds.tools import is_error


def step_metrics(
    trajectories_PG: Sequence[Trajectory], *, rule_rewards_P_G: FloatArray, success_PG: Sequence[bool], advantages_P_G: FloatArray
) -> dict[str, float]:
    """The group metrics of the rule rewards, and of the episodes: `success` (share), `turns` (agent messages per episode), `tool_failures` (share of
    tool results that are errors, 0 where no tool was called), `length` (agent tokens per episode) and `entropy` in nats per token.

    `entropy` is estimated from the samples as the mean of -log p over the agent's tokens, p being the distribution sampled from; at temperature 1 its
    expectation is the policy's entropy.
    """
    num_groups, group_size = rule_rewards_P_G.shape
    successes_P_G = np.asarray(success_PG).reshape(num_groups, group_size)
    groups = [Group(rewards.tolist(), successes.tolist()) for rewards, successes in zip(rule_rewards_P_G, successes_P_G, strict=True)]
    lengths = [sum(trajectory.mask) for trajectory in trajectories_PG]
    results = [message.content for trajectory in trajectories_PG for message in trajectory.messages if message.role == "tool"]
    turns = [sum(message.role == "assistant" for message in trajectory.messages) for trajectory in trajectories_PG]
    return {
        **group_metrics(groups),
        "frac_tokens_nonzero_advantage": frac_tokens_nonzero_advantage(advantages_P_G.flatten().tolist(), lengths),
        "success": float(np.mean(success_PG)),
        "turns": float(np.mean(turns)),
        "tool_failures": sum(map(is_error, results)) / len(results) if results else 0.0,
        "length": float(np.mean(lengths)),
        "entropy": -sum(sum(trajectory.logprobs) for trajectory in trajectories_PG) / max(sum(lengths), 1),
    }


def kl_estimate(policy_logprobs: Sequence[float], reference_logprobs: Sequence[float]) -> float:
    """Mean over tokens of r - 1 - log r with r = p_reference / p_policy, in nats per token: an unbiased estimate of KL(policy || reference) from the
    policy's samples that is never negative (the k3 of http://joschu.net/blog/kl-approx.html). Policy 1/2, reference 1/4: 1/2 - 1 + ln 2 = 0.193.
    """
    log_ratio = np.asarray(reference_logprobs, dtype=np.float64) - np.asarray(policy_logprobs, dtype=np.float64)
    return float(np.mean(np.exp(log_ratio) - 1 - log_ratio))
