"""What is told of a step besides what it learnt: its episodes, its groups, its credit, how far the
policy has moved, and what it has forgotten."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from posttrain.models import distributed
from posttrain.models.codec import TokenRow
from posttrain.models.token_logprobs import IGNORED, labels_of, pad_right
from posttrain.train.advantages.params import Compared
from posttrain.train.losses.importance import importance_metrics, turn_numbers
from posttrain.train.online.batch import Member, Rows, rows_of
from posttrain.train.online.episode_groups import EpisodeGroup
from posttrain.train.online.params import OnlineParams
from posttrain.train.online.step_metrics import kl_estimate, step_metrics
from posttrain.train.online.updates import Updates, scored
from posttrain.types import ScoredEpisode

_LEAST_ADVANTAGE = 1e-6
_TOLD_TURNS = 3  # each by itself, the later ones together


def episode_metrics(groups: Sequence[EpisodeGroup], group_size: int) -> dict[str, float]:
    """Of what was played now: none of what joined."""
    played, shape = [one for group in groups for one in group.played], (-1, group_size)
    return step_metrics(
        played,
        rule_rewards_P_G=np.array([one.rule_reward for one in played]).reshape(shape),
        is_lost_P_G=np.array([one.is_lost for one in played]).reshape(shape),
    )


def group_counts(
    groups: Sequence[EpisodeGroup],
    is_trained: Sequence[bool],
    members: Sequence[Sequence[Member]],
    params: OnlineParams,
) -> dict[str, float]:
    """`groups_played`, and of these `groups_trained`, `groups_unneeded` (left out by a refill),
    `groups_dropped_equal` and `_all_good` (left out by `credit.drop`) and `groups_idle` (without
    any advantage); `frac_equal_trained`: share of those trained whose rewards are equal. Of those
    played it is `frac_reward_zero_std`. `joined`: episodes that joined."""
    drop = params.credit.drop if isinstance(params.credit, Compared) else "none"
    trained = [group for group, is_one in zip(groups, is_trained, strict=True) if is_one]
    num_equal = sum(not group.has_spread for group in trained)
    return {
        "groups_played": len(groups),
        "groups_trained": len(trained),
        "groups_unneeded": len(groups) - len(trained),
        "groups_dropped_equal": sum(drop == "equal" and not group.has_spread for group in groups),
        "groups_dropped_all_good": sum(drop == "all_good" and bool(group.group.successes_G.all()) for group in groups),
        "groups_idle": sum(all(one.is_idle for one in own) for own in members),
        "frac_equal_trained": num_equal / len(trained) if trained else 0.0,
        "joined": sum(len(group.joined) for group in groups),
    }


def credit_metrics(
    groups: Sequence[EpisodeGroup], is_trained: Sequence[bool], members: Sequence[Sequence[Member]]
) -> dict[str, float]:
    """`frac_tokens_nonzero_advantage`: of the agent's tokens in what was played, the share with an
    advantage beyond 1e-6; `frac_trained_tokens_nonzero_advantage`, of those in groups that were
    trained. `advantage_turn_1` to `_3` and `_later`: the mean |advantage| of tokens
    of an episode's first turn and so on; 0 where there is none."""
    by_turn: list[list[float]] = [[] for _ in range(_TOLD_TURNS + 1)]
    num_tokens, num_credited = [0, 0], [0, 0]  # of what was played and not trained, of what was
    for group, is_one, own in zip(groups, is_trained, members, strict=True):
        for one, turns, is_joined in zip(own, group.group.turns_G, group.group.is_joined_G, strict=True):
            if is_joined:
                continue
            num_tokens[is_one] += len(one.advantages_T)
            num_credited[is_one] += int((np.abs(one.advantages_T) > _LEAST_ADVANTAGE).sum())
            ends = np.cumsum([turn.num_tokens for turn in turns])[:-1]
            for place, advantages_T in enumerate(np.split(one.advantages_T, ends)):
                by_turn[min(place, _TOLD_TURNS)] += np.abs(advantages_T).tolist()
    names = [*(f"advantage_turn_{place + 1}" for place in range(_TOLD_TURNS)), "advantage_turn_later"]
    return {
        "frac_tokens_nonzero_advantage": sum(num_credited) / max(sum(num_tokens), 1),
        "frac_trained_tokens_nonzero_advantage": num_credited[True] / max(num_tokens[True], 1),
        **{name: float(np.mean(values)) if values else 0.0 for name, values in zip(names, by_turn, strict=True)},
    }


def reference_logprobs(reference: Any, learner: Any, rows: Rows, temperature: float) -> Tensor:
    """By the model that training began from, shape (N, T-1): a copy of it, or the one in training
    without its adapters."""
    inner = learner.module if isinstance(learner, DistributedDataParallel) else learner
    model = inner if reference is None else reference
    adapters_off = model.disable_adapter() if reference is None else contextlib.nullcontext()
    with torch.no_grad(), adapters_off:
        return scored(model, rows.to(next(model.parameters()).device), temperature).logprobs


def samples(groups: Sequence[EpisodeGroup]) -> list[ScoredEpisode]:
    """The first episode of each group that was played and not lost: a sixteenth of the tokens tells
    well enough where the policy is."""
    kept = [[one for one in group.played if not one.is_lost] for group in groups]
    return [of_group[0] for of_group in kept if of_group]


def kl_to_start(by_start: Callable[[Rows], Tensor], played: Sequence[ScoredEpisode], tokenizer: Any) -> float:
    """To the model that training began from, whose log-probs `by_start` gives; 0.0 of nothing."""
    if not any(any(one.trajectory.mask) for one in played):
        return 0.0
    members = [Member(one, np.zeros(sum(one.trajectory.mask))) for one in played]
    rows = rows_of(members, pad_id=tokenizer.pad_token_id)
    logprobs = by_start(rows).cpu()
    is_scored_N_T = rows.is_scored_N_T
    return kl_estimate(rows.engine_logprobs_N_T[is_scored_N_T].tolist(), logprobs[is_scored_N_T].tolist())


def loss_on(model: Any, demonstrations: Sequence[TokenRow], tokenizer: Any) -> float:
    """Mean loss per agent token, as supervised fine-tuning has it."""
    input_ids = pad_right([row.input_ids for row in demonstrations], tokenizer.pad_token_id)
    labels = pad_right([labels_of(row.input_ids, row.mask) for row in demonstrations], IGNORED)
    zeros, places = torch.zeros(labels[:, 1:].shape), torch.arange(len(demonstrations))
    rows = Rows(input_ids, labels, zeros, zeros, (labels[:, 1:] != IGNORED).sum(1), places > 0, places)
    with torch.no_grad():
        logprobs = scored(model, rows.to(next(model.parameters()).device), 1.0).logprobs
    return float(-logprobs.double().sum() / rows.lengths_N.sum())


def engine_gap(updates: Updates, params: OnlineParams) -> dict[str, float]:
    """Of the log-probs before the first update against the engine's, of all processes; of a step
    that learnt nothing, weights of 1."""
    ratios, turns = [], []
    for logprobs, part in zip(updates.before, updates.parts, strict=True):
        is_played_N_T = part.is_scored_N_T & ~part.is_shown_N[:, None]
        ratios += (logprobs.cpu() - part.engine_logprobs_N_T)[is_played_N_T].tolist()
        turns += turn_numbers(part.is_scored_N_T)[is_played_N_T].tolist()
    return importance_metrics(
        [ratio for of_process in distributed.gather(ratios) for ratio in of_process],
        [turn for of_process in distributed.gather(turns) for turn in of_process],
        cap=params.importance_cap,
    )


def mean_advantages(groups: Sequence[EpisodeGroup], members: Sequence[Sequence[Member]]) -> list[float]:
    """Of each episode that was played the mean over its tokens; 0 of a lost one."""
    means = []
    for group, own in zip(groups, members, strict=True):
        left = iter(own)
        means += [0.0 if one.is_lost else float(next(left).advantages_T.mean()) for one in group.played]
    return means
