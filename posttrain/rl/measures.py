"""What is told of a step besides what it learnt: its episodes, its groups, how far the policy has
moved, and what it has forgotten."""

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from posttrain.algorithms import processes
from posttrain.algorithms.grpo_metrics import kl_estimate, step_metrics
from posttrain.algorithms.importance import importance_metrics, turn_numbers
from posttrain.algorithms.rollouts import ScoredEpisode
from posttrain.algorithms.token_logprobs import IGNORED, labels_of, pad_right
from posttrain.models.codec import TokenRow
from posttrain.rl.credit.groups import Group
from posttrain.rl.params import OnlineParams
from posttrain.rl.play import has_spread
from posttrain.rl.rows import Rows, rows_of
from posttrain.rl.updates import logprobs_of


def episode_metrics(played: Sequence[ScoredEpisode], advantages: Sequence[float], group_size: int) -> dict[str, float]:
    shape = (-1, group_size)
    return step_metrics(
        played,
        rule_rewards_P_G=np.array([one.rule_reward for one in played]).reshape(shape),
        is_lost_P_G=np.array([one.is_lost for one in played]).reshape(shape),
        advantages_P_G=np.array(advantages).reshape(shape),
    )


def group_counts(groups: Sequence[Group], is_trained: Sequence[bool]) -> dict[str, float]:
    """`groups_played` and `groups_trained`; `frac_equal_trained`: share of the latter whose rewards
    are equal. Of those played it is `frac_reward_zero_std`."""
    trained = [group for group, is_one in zip(groups, is_trained, strict=True) if is_one]
    num_equal = sum(not has_spread(group) for group in trained)
    return {
        "groups_played": len(groups),
        "groups_trained": len(trained),
        "frac_equal_trained": num_equal / len(trained) if trained else 0.0,
    }


def kl_to_start(
    reference: Any, learner: Any, played: Sequence[ScoredEpisode], tokenizer: Any, temperature: float
) -> float:
    """To the model that training began from, on the first episode of each group: a sixteenth of the
    tokens tells it well enough."""
    rows = rows_of(played, [0.0] * len(played), pad_id=tokenizer.pad_token_id)
    inner = learner.module if isinstance(learner, DistributedDataParallel) else learner
    model = inner if reference is None else reference
    adapters_off = model.disable_adapter() if reference is None else contextlib.nullcontext()
    with torch.no_grad(), adapters_off:
        logprobs = logprobs_of(model, rows.to(next(model.parameters()).device), temperature).cpu()
    is_scored_N_T = rows.is_scored_N_T
    return kl_estimate(rows.engine_logprobs_N_T[is_scored_N_T].tolist(), logprobs[is_scored_N_T].tolist())


def loss_on(model: Any, demonstrations: Sequence[TokenRow], tokenizer: Any) -> float:
    """Mean loss per agent token, as supervised fine-tuning has it."""
    input_ids = pad_right([row.input_ids for row in demonstrations], tokenizer.pad_token_id)
    labels = pad_right([labels_of(row.input_ids, row.mask) for row in demonstrations], IGNORED)
    zeros = torch.zeros(labels[:, 1:].shape)
    rows = Rows(input_ids, labels, zeros, zeros, (labels[:, 1:] != IGNORED).sum(1))
    with torch.no_grad():
        logprobs = logprobs_of(model, rows.to(next(model.parameters()).device), 1.0)
    return float(-logprobs.double().sum() / rows.lengths_N.sum())


def engine_gap(before: Sequence[Tensor], parts: Sequence[Rows], params: OnlineParams) -> dict[str, float]:
    """Of the log-probs before the first update against the engine's, of all processes."""
    ratios, turns = [], []
    for logprobs, part in zip(before, parts, strict=True):
        is_scored_N_T = part.is_scored_N_T
        ratios += (logprobs.cpu() - part.engine_logprobs_N_T)[is_scored_N_T].tolist()
        turns += turn_numbers(is_scored_N_T)[is_scored_N_T].tolist()
    return importance_metrics(
        [ratio for of_process in processes.gather(ratios) for ratio in of_process],
        [turn for of_process in processes.gather(turns) for turn in of_process],
        cap=params.importance_cap,
    )
