"""Learns from the rows of a step: their log-probabilities, their loss, and what the optimizer steps
came to."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from posttrain.algorithms import processes
from posttrain.algorithms.importance import importance_weights
from posttrain.algorithms.rollouts import ScoredEpisode
from posttrain.algorithms.token_logprobs import agent_logprobs, can_pick_before_head
from posttrain.rl.objective.token_losses import held_side, token_losses, token_weights
from posttrain.rl.params import OnlineParams
from posttrain.rl.rows import Rows, parts_by_length, rows_of


def own_parts(rows: Sequence[tuple[ScoredEpisode, float]], pad_id: int) -> list[Rows]:
    """This process's share of the rows with an advantage, in parts of one length: others have no
    gradient. Every process has as many parts as every other, each with a row."""
    teaching, idle = [row for row in rows if row[1]], [row for row in rows if not row[1]]
    num_parts = min(processes.NUM_PARTS, len(rows) // processes.count())
    kept = teaching + idle[: max(num_parts * processes.count() - len(teaching), 0)]
    own = np.array_split(np.arange(len(kept)), processes.count())[processes.index()]
    episodes, advantages = zip(*(kept[place] for place in own), strict=True)
    return parts_by_length(rows_of(episodes, advantages, pad_id=pad_id), num_parts)


def weights_of(
    parts: Sequence[Rows], played: Sequence[ScoredEpisode], params: OnlineParams, max_context_tokens: int
) -> list[Tensor]:
    kept = [one for one in played if not one.is_lost]
    num_tokens = sum(sum(one.trajectory.mask) for one in kept)
    return [
        token_weights(
            part.lengths_N,
            average=params.average,
            num_tokens=num_tokens,
            num_episodes=len(kept),
            max_tokens=max_context_tokens,
        )
        for part in parts
    ]


def logprobs_of(model: Any, rows: Rows, temperature: float) -> Tensor:
    """Of each token of the agent's given what stands before it, shape (N, T-1), 0 elsewhere."""
    if can_pick_before_head(model, rows.input_ids_N_T):
        return agent_logprobs(model, rows.input_ids_N_T, rows.labels_N_T, temperature=temperature)
    is_scored_N_T = rows.is_scored_N_T
    logits = model(input_ids=rows.input_ids_N_T, use_cache=False).logits[:, :-1][is_scored_N_T]
    targets = rows.labels_N_T[:, 1:][is_scored_N_T]
    picked = -torch.nn.functional.cross_entropy(logits.float() / temperature, targets, reduction="none")
    return torch.zeros(is_scored_N_T.shape, dtype=picked.dtype, device=picked.device).masked_scatter(
        is_scored_N_T, picked
    )


def part_loss(now_N_T: Tensor, before_N_T: Tensor, rows: Rows, weight_N: Tensor, params: OnlineParams) -> Tensor:
    """What these rows add to the step's loss. `now` and `before`: log-probs of the agent's tokens
    by the weights as they are and as they were before the step's first update."""
    trusted_N_T = importance_weights(before_N_T, rows.engine_logprobs_N_T, cap=params.importance_cap)
    losses_N_T = token_losses(
        now_N_T - before_N_T, rows.advantages_N_T * trusted_N_T, params.objective, is_scored_N_T=rows.is_scored_N_T
    )
    return (losses_N_T * rows.is_scored_N_T * weight_N[:, None]).sum()


class Updates:
    """What the optimizer steps of one step came to."""

    def __init__(self) -> None:
        self.grad_norms: list[float] = []
        self._num_tokens = self._num_low = self._num_high = 0.0

    def hear(self, log_ratio_N_T: Tensor, rows: Rows, params: OnlineParams) -> None:
        """Of a part that is learnt from."""
        is_scored_N_T = rows.is_scored_N_T
        side_N_T = held_side(log_ratio_N_T.detach(), rows.advantages_N_T, params.objective, is_scored_N_T=is_scored_N_T)
        side = side_N_T.expand_as(is_scored_N_T)[is_scored_N_T]
        self._num_tokens += side.numel()
        self._num_low += float((side < 0).sum())
        self._num_high += float((side > 0).sum())

    def metrics(self) -> dict[str, float]:
        """`grad_norm`: of the last update, before it is clipped. `updates`: how many were made.
        `clip_low`, `clip_high`: shares of this process's tokens whose ratio was held."""
        tokens = max(self._num_tokens, 1.0)
        return {
            "grad_norm": self.grad_norms[-1] if self.grad_norms else 0.0,
            "updates": len(self.grad_norms),
            "clip_low": self._num_low / tokens,
            "clip_high": self._num_high / tokens,
        }


def without_dropout(model: nn.Module) -> None:
    """A ratio of probabilities would be one of two random networks' with it."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
