"""Credits the episodes of a step with what the chosen credit needs to know: entropies of the
policy, or a critic's expectation."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from posttrain.train.advantages.choice import token_credit
from posttrain.train.advantages.critic import Critic, explained_variance, targets_of
from posttrain.train.advantages.gae import gae_credit
from posttrain.train.advantages.groups import FloatArray, TokenCredit
from posttrain.train.advantages.history import TaskHistory
from posttrain.train.advantages.params import ByEntropy, EpisodeCredit, GaeCredit
from posttrain.train.online.batch import Member, by_place, own_parts
from posttrain.train.online.episode_groups import EpisodeGroup
from posttrain.train.online.params import OnlineParams
from posttrain.train.online.updates import entropies


class AdvantageEstimator:
    """`learner` is the policy in training, which no other process has a share of yet. `weights` are
    those of the scores in the reward. `metrics` are of the last step: `explained_variance` of the
    returns by the critic before it learnt from them, and `value_loss`, its mean squared error; both
    0 without a critic."""

    def __init__(
        self,
        learner: Any,
        params: OnlineParams,
        weights: Mapping[str, float],
        *,
        pad_id: int,
        rows_at_once: int | None,
        seed: int,
        device: torch.device,
    ) -> None:
        self._params, self._weights, self._pad_id, self._seed = params, weights, pad_id, seed
        self._rows_at_once = rows_at_once
        credit = params.credit
        self._critic = Critic(learner, credit.critic, device=device) if isinstance(credit, GaeCredit) else None
        self.metrics = {"explained_variance": 0.0, "value_loss": 0.0}

    def members(
        self, learner: Any, groups: Sequence[EpisodeGroup], history: TaskHistory, *, step: int
    ) -> list[list[Member]]:
        """Of each group its members, in its order, with an advantage for each token. A critic
        learns from them."""
        seen, credit = [one.group for one in groups], self._params.credit
        if isinstance(credit, GaeCredit):
            found = self._by_critic(groups, credit)
        else:
            found = token_credit(
                seen,
                credit,
                history,
                weights=self._weights,
                entropies=self._entropies(learner, groups),
                seed=self._seed,
                step=step,
            )
        return [_with(group, of_group) for group, of_group in zip(groups, found, strict=True)]

    def is_warming(self, step: int) -> bool:
        """Whether the policy still waits for its critic."""
        credit = self._params.credit
        return isinstance(credit, GaeCredit) and step < credit.critic.warmup_steps

    def save(self, folder: Path) -> None:
        """What a checkpoint needs of it."""
        if self._critic is not None:
            self._critic.save(folder)

    def load(self, folder: Path) -> None:
        """The reverse."""
        if self._critic is not None:
            self._critic.load(folder)

    def _by_critic(self, groups: Sequence[EpisodeGroup], credit: GaeCredit) -> TokenCredit:
        assert self._critic is not None
        blank = [one for group in groups for one in _uncredited(group)]
        if not blank:
            return [[] for _ in groups]
        parts = own_parts(blank, self._pad_id, self._rows_at_once)
        values = by_place(parts, self._critic.values(parts))
        found, returns = gae_credit([one.group for one in groups], _grouped(groups, values), credit)
        wanted = [one for of_group in returns for one in of_group]
        targets = [targets_of([wanted[place] for place in part.places_N.tolist()], part) for part in parts]
        self.metrics = {
            "explained_variance": explained_variance(
                np.concatenate(wanted), np.concatenate([values[place] for place in range(len(blank))])
            ),
            "value_loss": self._critic.learn(parts, targets),
        }
        return found

    def _entropies(self, learner: Any, groups: Sequence[EpisodeGroup]) -> TokenCredit | None:
        """Of each token's distribution, in nats; None where no credit asks."""
        credit = self._params.credit
        if not (isinstance(credit, EpisodeCredit) and isinstance(credit.equal_groups, ByEntropy)):
            return None
        uncredited = [one for group in groups for one in _uncredited(group)]
        parts = own_parts(uncredited, self._pad_id, self._rows_at_once)
        device = next(learner.parameters()).device
        with torch.no_grad():
            found = [entropies(learner, part.to(device), self._params.temperature) for part in parts]
        return _grouped(groups, by_place(parts, found))


def _uncredited(group: EpisodeGroup) -> list[Member]:
    nothing = [np.zeros(sum(turn.num_tokens for turn in turns)) for turns in group.group.turns_G]
    return _with(group, nothing)


def _with(group: EpisodeGroup, credit: Sequence[FloatArray]) -> list[Member]:
    return [
        Member(one, advantages_T, is_shown=group.is_shown and is_joined)
        for one, advantages_T, is_joined in zip(group.kept, credit, group.group.is_joined_G, strict=True)
    ]


def _grouped(groups: Sequence[EpisodeGroup], values: Mapping[int, FloatArray]) -> list[list[FloatArray]]:
    places = iter(range(sum(len(group.kept) for group in groups)))
    return [[values[next(places)] for _ in group.kept] for group in groups]
