"""Log-probabilities of the agent's tokens: the forward pass of every loss.

An agent writes a third of an episode or less, so its positions are selected before the output
matrix: a quarter less time for a 0.4M-parameter model, and never more than MAX_LOGITS logits at
once; the backward pass recomputes those of each piece. With several processes the whole `forward`
is called, where DDP and FSDP exchange gradients.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from posttrain.models.adapters import behind_adapters

IGNORED = -100
MAX_LOGITS = 1 << 27  # half a GiB in single precision: 900 tokens of Qwen2.5's vocabulary


class TokenScores(NamedTuple):
    """Log-probabilities and, on request, entropies in nats: (P,) of the agent's P tokens, or
    (N, T-1) with 0 where a token is not the agent's."""

    logprobs: Tensor
    entropies: Tensor | None


def agent_logprobs(model: Any, input_ids_N_T: Tensor, labels_N_T: Tensor) -> Tensor:
    """Log-probability of each labelled token, shape (N, T-1), column t for token t+1, 0 where
    the label is `IGNORED`. Rows are padded on the right, where causal attention never looks: an
    attention mask would cost a tenth of a step."""
    if _is_wrapped(model):
        scored: Tensor = model(
            input_ids=input_ids_N_T, use_cache=False, labels=labels_N_T, fused_lm_head=True
        ).log_probs
        return scored
    return agent_scores(model, input_ids_N_T, labels_N_T).logprobs


def agent_scores(
    model: Any, input_ids_N_T: Tensor, labels_N_T: Tensor, *, temperature: float = 1.0, with_entropies: bool = False
) -> TokenScores:
    """The same as `agent_logprobs` at a temperature, with entropies, (N, T-1)."""
    is_scored_N_T = labels_N_T[:, 1:] != IGNORED
    found = _scores_in_pieces(model, input_ids_N_T, labels_N_T, temperature, with_entropies)
    entropies = None if found.entropies is None else scatter_scores(found.entropies, is_scored_N_T)
    return TokenScores(scatter_scores(found.logprobs, is_scored_N_T), entropies)


def _scores_in_pieces(
    model: Any, input_ids_N_T: Tensor, labels_N_T: Tensor, temperature: float, with_entropies: bool
) -> TokenScores:
    """Scores (P,) in row-major order, of at most MAX_LOGITS logits at once."""
    is_scored_N_T = labels_N_T[:, 1:] != IGNORED
    targets_P = labels_N_T[:, 1:][is_scored_N_T]
    if _is_wrapped(model):
        logits = model(input_ids=input_ids_N_T, use_cache=False).logits[:, :-1][is_scored_N_T]
        return _scores(logits, targets_P, temperature, with_entropies)
    causal_lm = behind_adapters(model)
    hidden = causal_lm.base_model(input_ids=input_ids_N_T, use_cache=False).last_hidden_state[:, :-1]
    hidden_P_H, head = hidden[is_scored_N_T], causal_lm.get_output_embeddings()

    def of(piece_H: Tensor, targets: Tensor) -> TokenScores:
        return _scores(head(piece_H), targets, temperature, with_entropies)

    size = max(1, MAX_LOGITS // head.weight.shape[0])
    if len(targets_P) <= size:
        return of(hidden_P_H, targets_P)
    # checkpoint frees each piece's logits after the forward pass and recomputes them in the
    # backward
    cuts = list(range(size, len(targets_P), size))
    pieces = [
        TokenScores(*checkpoint(of, *both, use_reentrant=False))
        for both in zip(hidden_P_H.tensor_split(cuts), targets_P.tensor_split(cuts), strict=True)
    ]
    entropies = torch.cat([one.entropies for one in pieces if one.entropies is not None]) if with_entropies else None
    return TokenScores(torch.cat([one.logprobs for one in pieces]), entropies)


def _scores(logits: Tensor, targets_P: Tensor, temperature: float, with_entropies: bool) -> TokenScores:
    logits = logits.float()
    if temperature != 1.0:
        logits = logits / temperature
    logprobs_P = -torch.nn.functional.cross_entropy(logits, targets_P, reduction="none")
    if not with_entropies:
        return TokenScores(logprobs_P, None)
    logprobs = logits.log_softmax(-1)
    return TokenScores(logprobs_P, -(logprobs.exp() * logprobs).sum(-1))


def scatter_scores(values_P: Tensor, is_scored_N_T: Tensor) -> Tensor:
    """Each value at its position, 0 elsewhere, shape (N, T-1)."""
    return torch.zeros(is_scored_N_T.shape, dtype=values_P.dtype, device=values_P.device).masked_scatter(
        is_scored_N_T, values_P
    )


def _is_wrapped(model: Any) -> bool:
    return isinstance(model, (DistributedDataParallel, FSDPModule))


def pad_right(rows: Sequence[Sequence[float]], value: int) -> Tensor:
    """Rows padded with `value`, shape (N, T), T of the longest."""
    width = max(len(row) for row in rows)
    return torch.tensor([[*row, *[value] * (width - len(row))] for row in rows])


def labels_of(input_ids: Sequence[int], mask: Sequence[int]) -> list[int]:
    """The agent's ids, `IGNORED` elsewhere."""
    return [token if is_agents else IGNORED for token, is_agents in zip(input_ids, mask, strict=True)]
