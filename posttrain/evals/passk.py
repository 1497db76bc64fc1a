"""pass^k: the chance that k independent episodes of a task all succeed (tau-bench, arXiv
2406.12045, section 3)."""

from collections.abc import Sequence
from math import comb

import numpy as np


def pass_hat_k(successes: Sequence[Sequence[bool]], k: int) -> float:
    """Mean over tasks of C(c, k) / C(n, k), for c successes among n samples: the unbiased estimate
    of p^k.

    One task with 3 of 4: k=1 gives 3/4, k=2 gives 3/6, k=4 gives 0. Raises ValueError where a task
    has fewer than k samples, or there is no task.
    """
    if not successes or min(len(samples) for samples in successes) < k or k < 1:
        raise ValueError(
            f"pass^{k} needs {k} or more samples of each task; the smallest has {min(map(len, successes), default=0)}"
        )
    return float(np.mean([comb(sum(samples), k) / comb(len(samples), k) for samples in successes]))
