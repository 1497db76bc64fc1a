"""Keeps the policy near the model that training began from."""

from torch import Tensor


def kl_estimates(now_N_T: Tensor, reference_N_T: Tensor) -> Tensor:
    """Of each token, r - 1 - log r with r = p_reference / p_now."""
    log_ratio = reference_N_T - now_N_T
    return log_ratio.exp() - 1 - log_ratio
