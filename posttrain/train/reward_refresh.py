"""Reward models that learn on while a policy is trained by them, from the policy's new episodes.

A policy leaves the episodes that its reward model learnt from, and finds what the model is wrong
about there. Every few steps the members learn pairs of the latest episodes, the best and the worst
of each group by the reward or by one of its scores, by the Bradley-Terry loss -log sigmoid(score of
the better - score of the worse)."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_model, save_model
from torch.nn.functional import logsigmoid

from posttrain.evals.groups import are_equal
from posttrain.models import distributed
from posttrain.runtime.exits import ConfigurationError
from posttrain.train.advantages.groups import EpisodeGroup
from posttrain.train.policy_params import RefreshParams
from posttrain.train.reward_ensemble import RewardModels
from posttrain.train.reward_model import batch_scores

_STATE = "reward_refresh.json"
Pair = tuple[list[int], list[int]]  # token ids of the better episode, and of the worse


class RewardRefresh:
    """Trains `models` in place. All processes see all episodes, and learn the same."""

    def __init__(self, models: RewardModels, params: RefreshParams, *, seed: int) -> None:
        self._models, self._params, self._seed = models, params, seed
        self._pairs: list[Pair] = []

    def observe(self, step: int, groups: Sequence[EpisodeGroup]) -> dict[str, float]:
        """Keep a pair of each group, and learn where step `step`, from 1, is one for it. Returns
        `reward_model_accuracy`, the share of the new pairs that the models had in order."""
        new = [pair for group in groups if (pair := _pair_of(group, self._params.by)) is not None]
        self._pairs += new
        if step % self._params.every_steps or not self._pairs:
            return {}
        better, worse = (self._models.score([pair[side] for pair in self._pairs]) for side in (0, 1))
        for number, member in enumerate(self._models.members):
            self._learn(member, np.random.default_rng([self._seed, step, number]))
        self._pairs = []
        return {"reward_model_accuracy": float(np.mean(better > worse))}

    def save(self, folder: Path) -> None:
        if not distributed.is_first():
            return
        for number, member in enumerate(self._models.members, 1):
            save_model(member, str(folder / f"reward-{number}.safetensors"))
        (folder / _STATE).write_text(json.dumps(self._pairs), encoding="utf-8")

    def load(self, folder: Path) -> None:
        for number, member in enumerate(self._models.members, 1):
            load_model(member, str(folder / f"reward-{number}.safetensors"))
        self._pairs = [(better, worse) for better, worse in json.loads((folder / _STATE).read_text(encoding="utf-8"))]

    def _learn(self, model: Any, rng: np.random.Generator) -> None:
        optimizer = torch.optim.AdamW(model.parameters(), lr=self._params.lr, weight_decay=0.0)
        model.train()
        for _ in range(self._params.max_steps):
            drawn = [self._pairs[place] for place in rng.integers(len(self._pairs), size=self._params.batch_size)]
            better_N, worse_N = (batch_scores(model, [pair[side] for pair in drawn]) for side in (0, 1))
            optimizer.zero_grad()
            loss: torch.Tensor = -logsigmoid(better_N - worse_N).mean()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        model.eval()


def _pair_of(group: EpisodeGroup, by: str | None) -> Pair | None:
    kept = [one for one in group.episodes if not one.is_aborted]
    if by is not None and (unknown := [one for one in kept if by not in one.trajectory.scores]):
        raise ConfigurationError(
            f"train_policy.reward_model_refresh.by is {by}, and an episode has the scores "
            f"{', '.join(unknown[0].trajectory.scores)}"
        )
    rewards = [one.rule_reward if by is None else one.trajectory.scores[by] for one in kept]
    if len(kept) < 2 or are_equal(rewards):
        return None
    better, worse = (kept[int(place)].trajectory.token_ids for place in (np.argmax(rewards), np.argmin(rewards)))
    return list(better), list(worse)
