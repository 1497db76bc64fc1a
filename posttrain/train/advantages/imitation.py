"""Supervised learning on an expert's traces, as the control of methods that replay them."""

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np

from posttrain.train.advantages.credit import Credit, StepContext
from posttrain.train.advantages.groups import FloatArray, Group


class ImitationCredit(Credit):
    """1 for an expert's trace that joined the group, nothing for what was played: supervised
    learning on the traces that an oracle method uses, as its control."""

    example: ClassVar[str] = "{}"
    type: Literal["imitation"]

    def episode_advantages(self, groups: Sequence[Group], _context: StepContext) -> list[FloatArray]:
        """Expected gradient: of no objective of the policy's, but of the traces'
        log-probability."""
        return [
            np.array(group.is_replayed_G, dtype=np.float64)
            if len(group.rewards_G) > 1 and len(group.is_replayed_G) > 0
            else np.zeros(len(group.rewards_G))
            for group in groups
        ]
