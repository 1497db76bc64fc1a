"""Metrics logged per step: of its episodes, groups and advantages, of how far the policy has
moved, and of what it has forgotten."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from posttrain.evals.groups import DEFINITION_VERSION, Group, group_metrics
from posttrain.evals.roles import tokens_by_role
from posttrain.models import distributed
from posttrain.models.codec import TokenRow
from posttrain.models.micro_batches import NO_LIMIT, AtOnce, cut_by_length
from posttrain.models.token_logprobs import IGNORED, agent_scores, labels_of, pad_right
from posttrain.train.advantages.credit import Compared
from posttrain.train.advantages.groups import EpisodeGroup
from posttrain.train.online.params import OnlineParams
from posttrain.train.online.trainer_state import TrainerState, TrainingInputs
from posttrain.train.online.updates import Batch, Sample, Updates, batch_of, score
from posttrain.types import ROLES, Trajectory
from posttrain.worlds.grading import CONSENT
from posttrain.worlds.made_calls import agent_messages
from posttrain.worlds.tools import is_error

T = TypeVar("T")
_LEAST_ADVANTAGE = 1e-6
_NO_GROUP = dict.fromkeys(group_metrics([Group([0.0, 0.0], [False, False])]), 0.0)
_NO_GROUP |= {"definition_version": DEFINITION_VERSION}
_NUM_LOGGED_TURNS = 3  # each by itself, the later ones together


def step_metrics(
    state: TrainerState,
    inputs: TrainingInputs,
    groups: Sequence[EpisodeGroup],
    is_trained: Sequence[bool],
    samples: Sequence[Sequence[Sample]],
    params: OnlineParams,
    *,
    step: int,
    kl: float | None,
    staleness: int,
) -> dict[str, Any]:
    """Metrics of a step before its update, from 1 on. Constraints and the reward models that learn
    on observe its episodes."""
    episodes = [one for group in groups for one in group.episodes]
    return {
        **episode_metrics(groups),
        **group_counts(groups, is_trained, samples, params),
        **advantage_metrics(groups, is_trained, samples),
        "generated_tokens": state.num_generated,
        **({} if kl is None else {"kl": kl}),
        "kl_weight": state.kl.weight,
        **state.constraints.observe(episodes),
        **(inputs.refresh.observe(step, groups) if inputs.refresh else {}),
        "staleness": staleness,
    }


def episode_metrics(groups: Sequence[EpisodeGroup]) -> dict[str, float]:
    """Metrics of the step's episodes: the group metrics of the rule rewards, `strict_success` and
    `success` (shares), `turns` (agent messages per episode), `tool_failures` (share of tool results
    that are errors), `cost_write_before_consent` (share, in a world where there is such a cost),
    `learnt_reward_mean` (of the rule rewards with what a reward model and constraints add),
    `length` (agent tokens per episode) and `entropy` in nats per token. `lost` is the share of
    aborted episodes; all others are about those that were not. Of two policies `length_planner` and
    `length_worker` are what each wrote, whether or not it learns from it.

    `entropy` is the mean of -log p over the agent's tokens, p being the distribution sampled from;
    at temperature 1 its expectation is the policy's entropy. Where no group has two episodes left,
    its metrics are 0, and `reward_mean` is of all that are left.
    """
    # what was aborted says nothing about the agent
    kept_of = [[one for one in group.episodes if not one.is_aborted] for group in groups]
    kept = [one for of_group in kept_of for one in of_group]
    trajectories_PG = [one.trajectory for one in kept]
    # the mask is 1 at the agent's tokens
    lengths = [sum(trajectory.mask) for trajectory in trajectories_PG]
    results = [
        message.content for trajectory in trajectories_PG for message in trajectory.messages if message.role == "tool"
    ]
    compared = [
        Group([one.rule_reward for one in of_group], [one.is_success for one in of_group])
        for of_group in kept_of
        if len(of_group) > 1
    ]
    consent = [one.scores[CONSENT] for one in trajectories_PG if CONSENT in one.scores]
    no_group = _NO_GROUP | {"reward_mean": _mean(one.rule_reward for one in kept)}
    return {
        **(group_metrics(compared) if compared else no_group),
        "strict_success": _mean(one.trajectory.is_strict_success for one in kept),
        "success": _mean(one.is_success for one in kept),
        "turns": _mean(len(agent_messages(trajectory)) for trajectory in trajectories_PG),
        "tool_failures": sum(map(is_error, results)) / len(results) if results else 0.0,
        "length": _mean(lengths),
        **(_lengths_by_role(trajectories_PG) if any(one.delegated for one in trajectories_PG) else {}),
        **({f"cost_{CONSENT}": _mean(consent)} if consent else {}),
        **(
            {"learnt_reward_mean": _mean(one.rule_reward + one.bonus for one in kept)}
            if any(one.bonus for one in kept)
            else {}
        ),
        "lost": _mean(one.is_aborted for group in groups for one in group.episodes),
        "entropy": -sum(sum(trajectory.logprobs) for trajectory in trajectories_PG) / max(sum(lengths), 1),
    }


def _lengths_by_role(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    found = [tokens_by_role(one) for one in trajectories]
    return {f"length_{role}": _mean(one[role] for one in found) for role in ROLES}


def _mean(values: Iterable[float]) -> float:
    """0 of none."""
    found = list(values)
    return float(np.mean(found)) if found else 0.0


def group_counts(
    groups: Sequence[EpisodeGroup],
    is_trained: Sequence[bool],
    samples: Sequence[Sequence[Sample]],
    params: OnlineParams,
) -> dict[str, float]:
    """Counts: `groups_played`, and of these `groups_trained`, `groups_unneeded` (left out by a
    refill), `groups_dropped_equal` and `_all_good` (by `credit.drop`), `groups_too_small` (fewer
    than two members, the others lost) and `groups_idle` (without any advantage); `joined`,
    replayed episodes. `frac_equal_trained`: share of groups trained whose rewards are equal; of
    those played it is `frac_reward_zero_std`."""
    drop = params.credit.drop if isinstance(params.credit, Compared) else "none"
    trained = [group for group, is_one in zip(groups, is_trained, strict=True) if is_one]
    num_equal = sum(not group.has_spread for group in trained)
    return {
        "groups_played": len(groups),
        "groups_trained": len(trained),
        "groups_unneeded": len(groups) - len(trained),
        "groups_dropped_equal": sum(drop == "equal" and not group.has_spread for group in groups),
        "groups_dropped_all_good": sum(drop == "all_good" and bool(group.group.successes_G.all()) for group in groups),
        "groups_too_small": sum(len(group.group.rewards_G) < 2 for group in groups),
        "groups_idle": sum(all(one.is_idle for one in own) for own in samples),
        "frac_equal_trained": num_equal / len(trained) if trained else 0.0,
        "joined": sum(len(group.replayed) for group in groups),
    }


def advantage_metrics(
    groups: Sequence[EpisodeGroup], is_trained: Sequence[bool], samples: Sequence[Sequence[Sample]]
) -> dict[str, float]:
    """`frac_tokens_nonzero_advantage`: share of played agent tokens with an advantage beyond
    1e-6; `frac_trained_tokens_nonzero_advantage`: the same in groups trained on.
    `advantage_turn_1` to `_3` and `_later`: mean |advantage| of the tokens of an episode's first
    turn and so on."""
    by_turn: list[list[float]] = [[] for _ in range(_NUM_LOGGED_TURNS + 1)]
    num_tokens, num_credited = [0, 0], [0, 0]  # in groups that were not trained, in those that were
    for group, is_one, own in zip(groups, is_trained, samples, strict=True):
        for one, turns, is_replayed in zip(own, group.group.turns_G, group.group.is_replayed_G, strict=True):
            if is_replayed:
                continue
            num_tokens[is_one] += len(one.advantages_T)
            num_credited[is_one] += int((np.abs(one.advantages_T) > _LEAST_ADVANTAGE).sum())
            ends = np.cumsum([turn.num_tokens for turn in turns])[:-1]
            for place, advantages_T in enumerate(np.split(one.advantages_T, ends)):
                by_turn[min(place, _NUM_LOGGED_TURNS)] += np.abs(advantages_T).tolist()
    names = [*(f"advantage_turn_{place + 1}" for place in range(_NUM_LOGGED_TURNS)), "advantage_turn_later"]
    return {
        "frac_tokens_nonzero_advantage": sum(num_credited) / max(sum(num_tokens), 1),
        "frac_trained_tokens_nonzero_advantage": num_credited[True] / max(num_tokens[True], 1),
        **{name: float(np.mean(values)) if values else 0.0 for name, values in zip(names, by_turn, strict=True)},
    }


def reference_logprobs(reference: Any, learner: Any, batch: Batch, temperature: float) -> Tensor:
    """Log-probs by the model that training began from, (N, T-1): a copy, or where `reference` is
    None the learner without its adapters."""
    # DDP hides the adapter's methods; without a gradient nothing is to be averaged
    inner = learner.module if isinstance(learner, DistributedDataParallel) else learner
    model = inner if reference is None else reference
    adapters_off = model.disable_adapter() if reference is None else contextlib.nullcontext()
    with torch.no_grad(), adapters_off:
        return score(model, batch.to(next(model.parameters()).device), temperature).logprobs


def kl_to_start(
    by_start: Callable[[Batch], Tensor], groups: Sequence[EpisodeGroup], pad_id: int, at_once: AtOnce = NO_LIMIT
) -> float:
    """Divergence from the model that training began from, on the first episode of each group
    that was not aborted: a few tokens tell well enough where the policy is."""
    firsts = [next((one for one in group.episodes if not one.is_aborted), None) for group in groups]
    samples = [Sample(one, np.zeros(sum(one.trajectory.mask))) for one in firsts if one is not None]
    if not any(len(one.advantages_T) for one in samples):
        return 0.0
    policy: list[float] = []
    reference: list[float] = []
    for own in _in_parts(samples, [len(one.episode.trajectory.token_ids) for one in samples], at_once):
        batch = batch_of(own, pad_id=pad_id)
        policy += batch.engine_logprobs_N_T[batch.is_scored_N_T].tolist()
        reference += by_start(batch).cpu()[batch.is_scored_N_T].tolist()
    return kl_estimate(policy, reference)


def kl_estimate(policy_logprobs: Sequence[float], reference_logprobs: Sequence[float]) -> float:
    """Mean over tokens of r - 1 - log r with r = p_reference / p_policy, in nats per token:
    unbiased for KL(policy || reference), never negative (k3 of
    http://joschu.net/blog/kl-approx.html). Policy 1/2, reference 1/4: 1/2 - 1 + ln 2 = 0.193."""
    # float64: the metrics of a step are the same whatever the weights' precision
    log_ratio = np.asarray(reference_logprobs, dtype=np.float64) - np.asarray(policy_logprobs, dtype=np.float64)
    return float(np.mean(np.exp(log_ratio) - 1 - log_ratio))


def demonstration_loss(
    model: Any, demonstrations: Sequence[TokenRow], pad_id: int, at_once: AtOnce = NO_LIMIT
) -> float:
    """Mean cross-entropy per agent token, as in supervised fine-tuning."""
    device, total = next(model.parameters()).device, 0.0
    for rows in _in_parts(demonstrations, [len(row.input_ids) for row in demonstrations], at_once):
        input_ids = pad_right([row.input_ids for row in rows], pad_id)
        labels = pad_right([labels_of(row.input_ids, row.mask) for row in rows], IGNORED)
        with torch.no_grad():
            total += float(agent_scores(model, input_ids.to(device), labels.to(device)).logprobs.double().sum())
    # a row's first token has nothing before it
    return -total / sum(sum(row.mask[1:]) for row in demonstrations)


def _in_parts(rows: Sequence[T], lengths: Sequence[int], at_once: AtOnce) -> Iterator[Sequence[T]]:
    if at_once.tokens is not None:
        return ([rows[place] for place in part] for part in cut_by_length(lengths, at_once))
    size = at_once.rows or len(rows)
    return (rows[start : start + size] for start in range(0, len(rows), size))


def engine_gap(updates: Updates, params: OnlineParams) -> dict[str, float]:
    """Importance metrics of the log-probs before the first update against the engine's, of all
    processes; weights of 1 for a step without an update."""
    ratios, turns = [], []
    for logprobs, batch in zip(updates.before, updates.micro_batches, strict=True):
        # an expert's tokens have no log-probability to compare
        is_own_N_T = batch.is_scored_N_T & ~batch.is_expert_N[:, None]
        ratios += (logprobs.cpu() - batch.engine_logprobs_N_T)[is_own_N_T].tolist()
        turns += turn_numbers(batch.is_scored_N_T)[is_own_N_T].tolist()
    return importance_metrics(
        [ratio for of_process in distributed.gather(ratios) for ratio in of_process],
        [turn for of_process in distributed.gather(turns) for turn in of_process],
        cap=params.importance_cap,
    )


def turn_numbers(is_scored_N_T: Tensor) -> Tensor:
    """Each scored token's turn, from 1 on, (N, T): 0 1 1 0 1 scored gives 1, 1 and 2 at its
    ones."""
    is_first_N_T = is_scored_N_T & ~torch.nn.functional.pad(is_scored_N_T, (1, -1))
    return is_first_N_T.cumsum(1)


def importance_metrics(log_ratios: Sequence[float], turns: Sequence[int], *, cap: float) -> dict[str, float]:
    """Metrics of log(p_trainer / p_engine) over a step's agent tokens: mean and largest weight,
    share at the cap, the largest |log ratio|, and `logprob_gap_turn`: the mean |log ratio| of first
    turns, of second ones and so on, the largest of these.

    Log ratios 0 and 1 in turns 1 and 2 under a cap of 2: weights 1 and 2, mean 1.5, half of them
    capped, both gaps 1. No token: weights of 1.
    """
    ratios = np.asarray(log_ratios or [0.0], dtype=np.float64)
    gaps, in_turn = np.abs(ratios), np.asarray(turns or [1])
    weights = np.minimum(np.exp(ratios), cap)
    return {
        "importance_mean": float(weights.mean()),
        "importance_max": float(weights.max()),
        "importance_capped_frac": float(np.mean(np.exp(ratios) > cap)),
        "logprob_gap_max": float(gaps.max()),
        "logprob_gap_turn": max(float(gaps[in_turn == turn].mean()) for turn in np.unique(in_turn)),
    }


def mean_advantages(groups: Sequence[EpisodeGroup], samples: Sequence[Sequence[Sample]]) -> list[float]:
    """Mean advantage over the tokens of each episode that was played; 0 of a lost one,
    and of one without a token."""
    means = []
    for group, own in zip(groups, samples, strict=True):
        left = iter(own)
        means += [
            0.0 if one.is_aborted or not (own_T := next(left).advantages_T).size else float(own_T.mean())
            for one in group.episodes
        ]
    return means
