"""Computes the log-probabilities of the tokens that the agent wrote. The one forward pass that
every loss here is made of.

TRL's fused head scores only the labelled positions on a GPU but all of them on a CPU, where an
agent writes a third of an episode. On a CPU the positions are picked before the head: a quarter
less time for a step of a 0.4M-parameter model. Not with several processes: they exchange gradients
only for what goes through the whole model's `forward`.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from posttrain.models.adapted import behind_adapters

IGNORED = -100


def agent_logprobs(model: Any, input_ids_N_T: Tensor, labels_N_T: Tensor) -> Tensor:
    """Log-probability of each labelled token given what stands before it, shape (N, T-1), 0 where
    the label is `IGNORED`.

    Column t belongs to token t+1. Rows are padded on the right and so need no attention mask, which
    would cost a tenth of a step: causal attention never looks there.
    """
    if not _can_pick_before_head(model, input_ids_N_T):
        scored: Tensor = model(
            input_ids=input_ids_N_T, use_cache=False, labels=labels_N_T, fused_lm_head=True
        ).log_probs
        return scored
    targets_N_T = labels_N_T[:, 1:]
    is_scored_N_T = targets_N_T != IGNORED
    logits = agent_logits(model, input_ids_N_T, is_scored_N_T)
    picked = -torch.nn.functional.cross_entropy(logits, targets_N_T[is_scored_N_T], reduction="none")
    return placed(picked, is_scored_N_T)


def agent_logits(model: Any, input_ids_N_T: Tensor, is_scored_N_T: Tensor) -> Tensor:
    """The logits that scored tokens were drawn by, in single precision, shape (P, vocabulary): a
    row for each place of `is_scored_N_T` (N, T-1) that is true, in their order."""
    if not _can_pick_before_head(model, input_ids_N_T):
        logits: Tensor = model(input_ids=input_ids_N_T, use_cache=False).logits
        return logits[:, :-1][is_scored_N_T].float()
    causal_lm = behind_adapters(model)
    hidden = causal_lm.base_model(input_ids=input_ids_N_T, use_cache=False).last_hidden_state[:, :-1]
    picked: Tensor = causal_lm.get_output_embeddings()(hidden[is_scored_N_T])
    return picked.float()


def placed(values_P: Tensor, is_scored_N_T: Tensor) -> Tensor:
    """The reverse of picking: each number at its place, 0 elsewhere."""
    return torch.zeros(is_scored_N_T.shape, dtype=values_P.dtype, device=values_P.device).masked_scatter(
        is_scored_N_T, values_P
    )


def _can_pick_before_head(model: Any, input_ids_N_T: Tensor) -> bool:
    """Whether the positions to score may be picked before the head: on a CPU, where the model is
    not wrapped for several processes."""
    return input_ids_N_T.device.type == "cpu" and not isinstance(model, (DistributedDataParallel, FSDPModule))


def pad_right(rows: Sequence[Sequence[float]], value: int) -> Tensor:
    """Shape (N, T) of the longest row."""
    width = max(len(row) for row in rows)
    return torch.tensor([[*row, *[value] * (width - len(row))] for row in rows])


def labels_of(input_ids: Sequence[int], mask: Sequence[int]) -> list[int]:
    """The ids where the agent wrote them, `IGNORED` elsewhere."""
    return [token if is_agents else IGNORED for token, is_agents in zip(input_ids, mask, strict=True)]
