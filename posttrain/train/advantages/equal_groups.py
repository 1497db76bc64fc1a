"""Advantages for groups in which all earned the same, which most baselines give none."""

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from posttrain.runtime.knobs import Section
from posttrain.train.advantages.groups import FloatArray, Group


class ByBaseline(Section):
    """A group of equal rewards is credited as any other: with nothing under a baseline that is its
    own mean."""

    type: Literal["by_baseline"]


class ByEntropy(Section):
    """A token of a group of equal rewards is credited with `alpha` times its entropy where all
    succeeded, and where all failed with how far it lies below the episode's most uncertain one
    (RL-ZVP)."""

    type: Literal["by_entropy"]
    alpha: Annotated[float, Field(gt=0)]

    def advantages(self, group: Group, entropies_G: Sequence[FloatArray]) -> list[FloatArray]:
        """For each member a number per token: alpha H_t where all succeeded, alpha (H_t - max_k
        H_k) where all failed, max over the episode's own tokens (arXiv 2509.21880, eq. 5); 0 where
        some did. `entropies_G`: H in nats, not differentiated.

        Expected gradient, of a reward that is success alone: none of J's. Where all succeed it is
        alpha P(success)^(G-1) times that of P(success) with each token's part times its entropy:
        more of what is done anyhow. Where all fail it is the same of failure with H_t - max_k H_k:
        less of it, the more certain the token was.

        Entropies 1/2, 2 at alpha 0.1: 0.05, 0.2 of a success, -0.15, 0 of a failure. Raises
        ValueError where a token has no entropy.
        """
        if [len(one) for one in entropies_G] != (lengths := [sum(t.num_tokens for t in own) for own in group.turns_G]):
            raise ValueError(
                f"the members of task {group.task_id} wrote {lengths} tokens and entropies came of "
                f"{[len(one) for one in entropies_G]}: each token needs its own"
            )
        if group.successes_G.all():
            return [self.alpha * entropies for entropies in entropies_G]
        if not group.successes_G.any():
            return [self.alpha * (entropies - entropies.max(initial=0.0)) for entropies in entropies_G]
        return [np.zeros(len(entropies)) for entropies in entropies_G]


class ByCoin(Section):
    """A group of equal rewards is credited with `size`, up or down as a coin falls: a control of
    what any constant does."""

    type: Literal["by_coin"]
    size: Annotated[float, Field(gt=0)]

    def advantage(self, *, seed: int, step: int, index: int) -> float:
        """For all tokens of the group at `index` of the step. Expected gradient: zero, as the coin
        does not look; it adds the noise and the entropy that any constant of that size does."""
        is_up = np.random.default_rng([seed, step, index]).integers(2)
        return self.size if is_up else -self.size


EqualGroups = Annotated[ByBaseline | ByEntropy | ByCoin, Field(discriminator="type")]
