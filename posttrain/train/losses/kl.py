"""The term of the loss that holds the policy to the model that training began from."""

import torch
from torch import Tensor


def kl_estimates(now_N_T: Tensor, reference_N_T: Tensor) -> Tensor:
    """Of each token r - 1 - log r with r = p_reference / p_now, from the log-probs of both, of
    their shape; never negative, 0 where both are equal (k3 of joschu.net/blog/kl-approx.html; GRPO,
    arXiv 2402.03300, eq. 4). Probabilities 1/2 and 1/4: 1/2 - 1 + log 2 = 0.193.

    Its value is unbiased: over tokens of the policy p it is KL(p || ref) in expectation, as E[r] is
    1. Its gradient is not that one's. dr = -r d(log p), so a token's gradient is (1 - r) grad log
    p, and

        sum of p (1 - r) grad log p = - sum of ref grad log p = grad KL(ref || p),

    as the sum of p grad log p is 0: on policy it is exactly the gradient of KL(ref || p). That of
    KL(p || ref) would have -log r in the place of 1 - r; near r = 1 both are one to first order.
    Both are of the next token alone: that the policy also chooses what later tokens stand behind is
    in neither. From a step's second update on the tokens are those of older weights, and neither is
    exact.
    """
    log_ratio = reference_N_T - now_N_T
    return torch.expm1(log_ratio) - log_ratio
