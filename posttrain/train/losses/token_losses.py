"""The loss of each token of the agent's, and how a step's losses become one number.

With one update a step the ratio to the policy that played is 1, and all of these have one gradient.
"""

import torch
from torch import Tensor

from posttrain.train.losses.params import Cispo, Clip, Gspo, LossMean, Objective, PolicyGradient, Sapo


def token_losses(
    log_ratio_N_T: Tensor, advantages_N_T: Tensor, objective: Objective, *, is_scored_N_T: Tensor
) -> Tensor:
    """`log_ratio`: log of a token's probability now over that when its episode was played. The
    losses have its shape; those of tokens that are not scored mean nothing.

    `clip` (PPO, arXiv 1707.06347, eq. 7; with two sides DAPO, arXiv 2503.14476, eq. 8): at a ratio
    of 1.5, an advantage of 1 and high 0.2 the loss is -1.2, without a gradient; at an advantage of
    -1 it is 1.5. `gspo` (arXiv 2507.18071, eq. 5 and 7): the same of the geometric mean of the
    episode's ratios. `cispo` (arXiv 2506.13585, eq. 4): min(ratio, cap), not differentiated, times
    the gradient of log p. `sapo` (arXiv 2511.20347): 4/t sigmoid(t (ratio - 1)), whose slope at a
    ratio of 1 is 1.
    """
    ratio = log_ratio_N_T.exp()
    match objective:
        case PolicyGradient():
            return -ratio * advantages_N_T
        case Clip(low=low, high=high):
            return _clipped(ratio, advantages_N_T, low, high)
        case Gspo(low=low, high=high):
            return _clipped(_mean_over_rows(log_ratio_N_T, is_scored_N_T).exp(), advantages_N_T, low, high)
        case Cispo(cap=cap):
            return -ratio.detach().clamp(max=cap) * advantages_N_T * log_ratio_N_T
        case Sapo(positive=positive, negative=negative):
            temperature = torch.full_like(advantages_N_T, negative).masked_fill(advantages_N_T > 0, positive)
            return -torch.sigmoid(temperature * (ratio - 1)) * 4 / temperature * advantages_N_T


def expert_losses(logprobs_N_T: Tensor, advantages_N_T: Tensor, *, gamma: float | None) -> Tensor:
    """Of tokens that an expert wrote, nobody knows how likely: the advantage times p / (p + gamma),
    p being their probability now (LUFFY, arXiv 2504.14945, eq. 7, with the expert's taken as 1),
    differentiated through, so that the gradient of log p is weighed by gamma p / (p + gamma)²: most
    where p is gamma. With no gamma, the advantage times log p: supervised learning. At p = 0.1 and
    gamma 0.1: -1/2 and a weight of 1/4.
    """
    if gamma is None:
        return -advantages_N_T * logprobs_N_T
    p = logprobs_N_T.exp()
    return -advantages_N_T * p / (p + gamma)


def clip_side(log_ratio_N_T: Tensor, advantages_N_T: Tensor, objective: Objective, *, is_scored_N_T: Tensor) -> Tensor:
    """Of each token whether the objective holds its ratio: -1 from below, 1 from above, 0 not."""
    match objective:
        case Clip(low=low, high=high):
            ratio = log_ratio_N_T.exp()
        case Gspo(low=low, high=high):
            ratio = _mean_over_rows(log_ratio_N_T, is_scored_N_T).exp()
        case Cispo(cap=cap):
            return (log_ratio_N_T.exp() > cap).float()
        case Sapo() | PolicyGradient():
            return torch.zeros_like(log_ratio_N_T)
    is_low, is_high = (ratio < 1 - low) & (advantages_N_T < 0), (ratio > 1 + high) & (advantages_N_T > 0)
    return is_high.float() - is_low.float()


def token_weights(
    lengths_N: Tensor, *, average: LossMean, num_tokens: int, num_episodes: int, max_tokens: int
) -> Tensor:
    """What a token's loss counts in the step's, shape (N,): each row's tokens alike.

    `num_tokens` and `num_episodes` are of the whole step, all processes and episodes without an
    advantage among them. Of two episodes with 1 and 3 tokens: `tokens` (DAPO) 1/4 each; `episodes`
    (GRPO) 1/2 and 1/6; `max_tokens` (Dr. GRPO, arXiv 2503.20783) 1/(2 · max_tokens) each.
    """
    match average:
        case "tokens":
            return torch.full_like(lengths_N, 1 / max(num_tokens, 1), dtype=torch.float32)
        case "episodes":
            return 1 / (lengths_N.clamp(min=1).float() * num_episodes)
        case "max_tokens":
            return torch.full_like(lengths_N, 1 / (num_episodes * max_tokens), dtype=torch.float32)


def _clipped(ratio: Tensor, advantages: Tensor, low: float, high: float) -> Tensor:
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)


def _mean_over_rows(log_ratio_N_T: Tensor, is_scored_N_T: Tensor) -> Tensor:
    """Shape (N, 1)."""
    count_N_1 = is_scored_N_T.sum(1, keepdim=True).clamp(min=1)
    return (log_ratio_N_T * is_scored_N_T).sum(1, keepdim=True) / count_N_1
