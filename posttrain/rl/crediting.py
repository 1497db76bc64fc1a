"""Credits the episodes of a step with what the chosen credit needs to know: entropies of the
policy, or a critic's expectation."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from posttrain.rl.credit.choice import token_credit
from posttrain.rl.credit.groups import FloatArray, TokenCredit
from posttrain.rl.credit.history import TaskHistory
from posttrain.rl.params import ByEntropy, EpisodeCredit, GaeCredit, OnlineParams
from posttrain.rl.played import PlayedGroup
from posttrain.rl.rows import Member, by_place, own_parts
from posttrain.rl.updates import scored


class Crediting:
    """`metrics` are of the last step."""

    def __init__(self, model: Any, tokenizer: Any, params: OnlineParams, weights: Any, *, seed: int) -> None:
        self._params, self._weights, self._seed = params, weights, seed
        self._pad_id = tokenizer.pad_token_id
        self.metrics: dict[str, float] = {}

    def members(
        self, learner: Any, groups: Sequence[PlayedGroup], history: TaskHistory, *, step: int
    ) -> list[list[Member]]:
        """Of each group its members, in its order, with an advantage for each token."""
        credit = self._params.credit
        assert not isinstance(credit, GaeCredit)
        found = token_credit(
            [one.group for one in groups],
            credit,
            history,
            weights=self._weights,
            entropies=self._entropies(learner, groups),
            seed=self._seed,
            step=step,
        )
        return [_with(group, credit) for group, credit in zip(groups, found, strict=True)]

    def is_warming(self, step: int) -> bool:
        """Whether the policy still waits for a critic."""
        return False

    def save(self, folder: Path) -> None:
        """What a checkpoint needs of it."""

    def load(self, folder: Path) -> None:
        """The reverse."""

    def _entropies(self, learner: Any, groups: Sequence[PlayedGroup]) -> TokenCredit | None:
        """Of each token's distribution, in nats; None where no credit asks."""
        credit = self._params.credit
        if not (isinstance(credit, EpisodeCredit) and isinstance(credit.equal_groups, ByEntropy)):
            return None
        parts = own_parts([one for group in groups for one in _uncredited(group)], self._pad_id)
        device = next(learner.parameters()).device
        with torch.no_grad():
            found = [
                scored(learner, part.to(device), self._params.temperature, with_entropies=True).entropies
                for part in parts
            ]
        return _grouped(groups, by_place(parts, [one for one in found if one is not None]))


def _uncredited(group: PlayedGroup) -> list[Member]:
    nothing = [torch.zeros(sum(turn.num_tokens for turn in turns)).numpy() for turns in group.group.turns_G]
    return _with(group, nothing)


def _with(group: PlayedGroup, credit: Sequence[FloatArray]) -> list[Member]:
    return [
        Member(one, advantages_T, is_shown=group.is_shown and is_joined)
        for one, advantages_T, is_joined in zip(group.kept, credit, group.group.is_joined_G, strict=True)
    ]


def _grouped(groups: Sequence[PlayedGroup], by_place: Any) -> list[list[FloatArray]]:
    places = iter(range(sum(len(group.kept) for group in groups)))
    return [[by_place[next(places)] for _ in group.kept] for group in groups]
