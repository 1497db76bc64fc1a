"""The credit that params.yaml chooses."""

from collections.abc import Mapping, Sequence

import numpy as np

from posttrain.rl.credit.episode import episode_advantages
from posttrain.rl.credit.groups import FloatArray, Group, TokenCredit, over_tokens
from posttrain.rl.credit.history import TaskHistory
from posttrain.rl.params import Compared, CreditParams


def token_credit(
    groups: Sequence[Group],
    credit: CreditParams,
    history: TaskHistory,
    *,
    weights: Mapping[str, float],
    entropies: Sequence[Sequence[FloatArray]],
    seed: int,
    step: int,
) -> TokenCredit:
    assert isinstance(credit, Compared)
    found = episode_advantages(groups, credit, history)
    return [
        [over_tokens(np.full(len(turns), a), turns) for a, turns in zip(adv, group.turns_G, strict=True)]
        for adv, group in zip(found, groups, strict=True)
    ]
