"""What a group is credited with in which all earned the same, where that is more than nothing."""

from collections.abc import Sequence

import numpy as np

from posttrain.train.advantages.groups import FloatArray, Group


def by_entropy(group: Group, entropies_G: Sequence[FloatArray], *, alpha: float) -> list[FloatArray]:
    """Of each member, a number for each of its tokens: alpha * H_t where all succeeded, alpha *
    (H_t - max_k H_k) where all failed, max over the episode's own tokens (RL-ZVP, arXiv 2509.21880,
    eq. 5); 0 where only some did. `entropies_G`: H of each token in nats, not differentiated.

    Expected gradient, of a reward that is success alone: none of J's. Where all succeed it is
    alpha * P(success)^(G-1) times that of P(success) with each token's part times its entropy: more
    of what is done anyhow. Where all fail it is the same of failure with H_t - max_k H_k: less of
    it, the more certain the token was.

    Entropies 1/2, 2 at alpha 0.1: 0.05, 0.2 of a success, -0.15, 0 of a failure.
    """
    if group.successes_G.all():
        return [alpha * entropies for entropies in entropies_G]
    if not group.successes_G.any():
        return [alpha * (entropies - entropies.max(initial=0.0)) for entropies in entropies_G]
    return [np.zeros(len(entropies)) for entropies in entropies_G]


def by_coin(*, size: float, seed: int, step: int, index: int) -> float:
    """`size` or its negative for all tokens of the group at `index` of a step's.

    Expected gradient: zero, since the coin does not look: what it adds is the noise and the entropy
    that any constant of that size does.
    """
    is_up = np.random.default_rng([seed, step, index]).integers(2)
    return size if is_up else -size
