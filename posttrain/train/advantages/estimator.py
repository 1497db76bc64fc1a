"""Advantages of a step's episodes, with what some methods need besides: entropies of the policy, a
critic's values, branches, or a process reward model."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from posttrain.models import distributed
from posttrain.models.micro_batches import AtOnce
from posttrain.runtime.exits import ConfigurationError
from posttrain.train.advantages.branch_values import BranchValueCredit
from posttrain.train.advantages.credit import ByEntropy, EpisodeCredit, StepContext
from posttrain.train.advantages.critic import Critic, explained_variance, targets_of
from posttrain.train.advantages.gae import GaeCredit
from posttrain.train.advantages.groups import EpisodeGroup, FloatArray, TokenAdvantages, TurnAdvantages
from posttrain.train.advantages.process_model import ProcessModelCredit
from posttrain.train.online.branches import PlayOn, play_branches
from posttrain.train.online.params import OnlineParams
from posttrain.train.online.updates import Sample, by_place, own_micro_batches, score
from posttrain.train.process_model import state_values
from posttrain.train.roles import EQUAL, RoleWeights, weighed


class AdvantageEstimator:
    """`learner`: the policy, not yet sharded. `metrics` of the last step, 0 without a critic:
    `explained_variance` of the returns before it learnt from them, and `value_loss`, its mean
    squared error; 0 without branches: `branches_played`, of these `branches_lost`, and
    `branch_tokens`, which they wrote."""

    def __init__(
        self,
        learner: Any,
        params: OnlineParams,
        score_weights: Mapping[str, float],
        *,
        pad_id: int,
        at_once: AtOnce,
        seed: int,
        device: torch.device,
        process_model: Any = None,
        role_weights: RoleWeights = EQUAL,
    ) -> None:
        self._role_weights = role_weights
        self._params, self._score_weights, self._pad_id, self._seed = params, score_weights, pad_id, seed
        self._at_once = at_once
        credit, self._process_model = params.credit, process_model
        if isinstance(credit, ProcessModelCredit) and process_model is None:
            raise ConfigurationError(
                "credit is process_model and none was given: the stage train_process_model trains it"
            )
        self._critic = Critic(learner, credit.critic, device=device) if isinstance(credit, GaeCredit) else None
        self.metrics: dict[str, float] = {"explained_variance": 0.0, "value_loss": 0.0}
        self.metrics |= {"branches_played": 0, "branches_lost": 0, "branch_tokens": 0}

    def samples(
        self, learner: Any, groups: Sequence[EpisodeGroup], *, step: int, play_on: PlayOn
    ) -> list[list[Sample]]:
        """Each group's members with an advantage per token. A critic learns from them."""
        credit, members = self._params.credit, [one.group for one in groups]
        if isinstance(credit, GaeCredit):
            found = self._by_critic(groups, credit)
        else:
            entropies, values, place = self._entropies(learner, groups), None, {"seed": self._seed, "step": step}
            if isinstance(credit, BranchValueCredit):
                branches = play_branches(groups, credit, play_on, entropies=entropies, **place)
                values = branches.values
                self.metrics |= {"branches_played": branches.num_played, "branches_lost": branches.num_lost}
                self.metrics["branch_tokens"] = branches.num_tokens
            elif isinstance(credit, ProcessModelCredit):
                values = self._state_values(groups)
            found = credit.token_advantages(members, StepContext(self._score_weights, entropies, values, **place))
        return [
            [self._weighed(one) for one in _samples(group, of_group)]
            for group, of_group in zip(groups, found, strict=True)
        ]

    def _weighed(self, one: Sample) -> Sample:
        return replace(one, advantages_T=weighed(one.advantages_T, one.episode.trajectory, self._role_weights))

    def is_warming(self, step: int) -> bool:
        """True while the policy waits for its critic."""
        credit = self._params.credit
        return isinstance(credit, GaeCredit) and step < credit.critic.warmup_steps

    def save(self, folder: Path) -> None:
        if self._critic is not None:
            self._critic.save(folder)

    def load(self, folder: Path) -> None:
        if self._critic is not None:
            self._critic.load(folder)

    def _state_values(self, groups: Sequence[EpisodeGroup]) -> TurnAdvantages:
        """Values before each turn by the process reward model."""
        episodes = [one.trajectory for group in groups for one in group.members]
        own = distributed.share_rows(episodes)
        # where the model is sharded all take as many: shares differ by one
        more = max(distributed.gather(len(own))) - len(own) if distributed.is_sharded() else 0
        found = distributed.gather(state_values(self._process_model, [*own, *episodes[:more]])[: len(own)])
        every = [values[:-1] for of_process in found for values in of_process]  # the last is behind the last turn
        return _by_group(groups, dict(enumerate(every)))

    def _by_critic(self, groups: Sequence[EpisodeGroup], credit: GaeCredit) -> TokenAdvantages:
        assert self._critic is not None
        blank = [one for group in groups for one in _blank(group)]
        if not blank:
            return [[] for _ in groups]
        micro_batches = own_micro_batches(blank, self._pad_id, self._at_once)
        values = by_place(micro_batches, self._critic.values(micro_batches))
        # all episodes in every process: whitening is over the whole step
        found, returns = credit.advantages_and_returns([one.group for one in groups], _by_group(groups, values))
        wanted = [one for of_group in returns for one in of_group]
        targets = [targets_of([wanted[place] for place in one.places_N.tolist()], one) for one in micro_batches]
        self.metrics |= {
            "explained_variance": explained_variance(
                np.concatenate(wanted), np.concatenate([values[place] for place in range(len(blank))])
            ),
            # after the values were read: advantages must not know this step's returns
            "value_loss": self._critic.learn(micro_batches, targets),
        }
        return found

    def _entropies(self, learner: Any, groups: Sequence[EpisodeGroup]) -> TokenAdvantages | None:
        """Entropy before each token, in nats; None where no method asks."""
        credit = self._params.credit
        is_of_equal = isinstance(credit, EpisodeCredit) and isinstance(credit.equal_groups, ByEntropy)
        if not is_of_equal and not (isinstance(credit, BranchValueCredit) and credit.at.needs_entropies):
            return None
        blank = [one for group in groups for one in _blank(group)]
        if not blank:
            return [[] for _ in groups]
        micro_batches = own_micro_batches(blank, self._pad_id, self._at_once)
        device = next(learner.parameters()).device
        found: list[torch.Tensor] = []
        with torch.no_grad():
            for batch in micro_batches:
                # at the temperature of play: the distribution that the tokens were drawn from
                entropies = score(learner, batch.to(device), self._params.temperature, with_entropies=True).entropies
                assert entropies is not None
                found.append(entropies)
        return _by_group(groups, by_place(micro_batches, found))


def _samples(group: EpisodeGroup, advantages: Sequence[FloatArray]) -> list[Sample]:
    return [
        Sample(one, advantages_T, is_expert=is_replayed)
        for one, advantages_T, is_replayed in zip(group.members, advantages, group.group.is_replayed_G, strict=True)
    ]


def _blank(group: EpisodeGroup) -> list[Sample]:
    """The members before they have advantages."""
    return _samples(group, [np.zeros(sum(turn.num_tokens for turn in turns)) for turns in group.group.turns_G])


def _by_group(groups: Sequence[EpisodeGroup], values: Mapping[int, FloatArray]) -> list[list[FloatArray]]:
    places = iter(range(sum(len(group.members) for group in groups)))
    return [[values[next(places)] for _ in group.members] for group in groups]
