"""Samples one token per row from logits, by inverting the cumulative distribution at a uniform
number.

Not `torch.multinomial`: it draws from one generator for the whole batch, so an episode would depend
on the others in its batch; it is also ten times slower at this size.
"""

import torch
from torch import Tensor


@torch.inference_mode()
def sample(logits_N_V: Tensor, temperature_N: Tensor, draw_N: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens (N,) and their log-probabilities (N,) under the distribution sampled from; draws are
    uniform in [0, 1).

    Temperature 0 takes the most probable token, with its log-probability at temperature 1. By hand:
    probabilities 0.25, 0.5, 0.25 have the cumulative sums 0.25, 0.75, 1, so a draw of 0.2 gives
    token 0, of 0.25 and of 0.7 token 1, of 0.9 token 2. A token of probability 0 is never drawn.
    """
    is_greedy_N = temperature_N == 0
    probs_N_V = torch.softmax(logits_N_V.float() / torch.where(is_greedy_N, 1.0, temperature_N)[:, None], dim=-1)
    if bool(is_greedy_N.all()):
        token_N = probs_N_V.argmax(-1)
    else:
        token_N = _inverse_cdf(probs_N_V, draw_N)
        if bool(is_greedy_N.any()):
            token_N = torch.where(is_greedy_N, probs_N_V.argmax(-1), token_N)
    return token_N, probs_N_V.gather(1, token_N[:, None]).squeeze(1).log()


def _inverse_cdf(probs_N_V: Tensor, draw_N: Tensor) -> Tensor:
    """The first token whose cumulative sum exceeds draw · total. The total is 1 only up to
    rounding, and the product may round up to it: then no sum would exceed it, and the last token
    would be drawn however improbable it is."""
    cdf_N_V = probs_N_V.cumsum(-1)
    total_N_1 = cdf_N_V[:, -1:]
    threshold_N_1 = torch.minimum(draw_N[:, None] * total_N_1, torch.nextafter(total_N_1, torch.zeros_like(total_N_1)))
    return torch.searchsorted(cdf_N_V, threshold_N_1, right=True).squeeze(1)
