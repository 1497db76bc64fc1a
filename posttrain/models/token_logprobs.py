"""Log-probabilities of the agent's tokens: the forward pass of every loss.

An agent writes a third of an episode or less, so its positions are selected before the output
matrix: a quarter less time for a 0.4M-parameter model, and never more than MAX_LOGITS logits at
once; the backward pass recomputes those of each piece. Memory so does not grow with vocabulary
times length. With several processes all of it is done within the whole model's `forward`, where
DDP and FSDP gather shards and exchange gradients.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from posttrain.models.adapters import behind_adapters
from posttrain.runtime.exits import ConfigurationError

IGNORED = -100
MAX_LOGITS = 1 << 26  # a quarter of a GiB in single precision: 440 tokens of Qwen2.5's vocabulary
_FACTORS = ("logit_scale", "output_multiplier", "lm_head_multiplier")  # of logits: Cohere, Muse, Falcon-H1


class TokenScores(NamedTuple):
    """Log-probabilities and, on request, entropies in nats: (P,) of the agent's P tokens, or
    (N, T-1) with 0 where a token is not the agent's."""

    logprobs: Tensor
    entropies: Tensor | None


def agent_logprobs(model: Any, input_ids_N_T: Tensor, labels_N_T: Tensor) -> Tensor:
    """Log-probability of each labelled token, shape (N, T-1), column t for token t+1, 0 where
    the label is `IGNORED`. Rows are padded on the right, where causal attention never looks: an
    attention mask would cost a tenth of a step."""
    return agent_scores(model, input_ids_N_T, labels_N_T).logprobs


def agent_scores(
    model: Any, input_ids_N_T: Tensor, labels_N_T: Tensor, *, temperature: float = 1.0, with_entropies: bool = False
) -> TokenScores:
    """The same as `agent_logprobs` at a temperature, with entropies, (N, T-1)."""
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    causal_lm, is_scored_N_T = behind_adapters(inner), labels_N_T[:, 1:] != IGNORED

    def forward(*_: Any, **__: Any) -> TokenScores:
        return _scores_in_pieces(causal_lm, input_ids_N_T, labels_N_T, temperature, with_entropies)

    if isinstance(model, (DistributedDataParallel, FSDPModule)):
        found = _called_with(forward, model, causal_lm, input_ids_N_T)
    else:
        found = forward()
    entropies = None if found.entropies is None else scatter_scores(found.entropies, is_scored_N_T)
    return TokenScores(scatter_scores(found.logprobs, is_scored_N_T), entropies)


@torch.no_grad()
def refuse_unknown_head(causal_lm: Any) -> None:
    """Raise ConfigurationError for a model whose `forward` changes logits in a way unknown here:
    what would be trained is not what plays."""
    first = torch.tensor([[causal_lm.config.get_text_config().vocab_size // 2]], device=causal_lm.device)
    own_V = causal_lm(input_ids=first, use_cache=False).logits[0, -1].float().log_softmax(-1)
    pair = torch.cat([first, own_V.argmax().view(1, 1)], dim=1)
    own, ours = float(own_V.max()), float(agent_logprobs(causal_lm, pair, pair))
    # bfloat16 has eight significant bits
    if abs(own - ours) > (1e-3 if causal_lm.dtype == torch.float32 else 0.05) * max(1.0, abs(own)):
        raise ConfigurationError(
            f"a model of type {causal_lm.config.model_type!r} gives its likeliest token the log-probability {own:.4f}, "
            f"and its last layer through its output matrix gives {ours:.4f}: what it does to logits besides is not "
            "known here, so another model would be trained than plays. Take a model of another family"
        )


def _called_with(forward: Any, wrapped: Any, causal_lm: Any, input_ids_N_T: Tensor) -> TokenScores:
    """Call `wrapped` with `forward` in the place of the causal LM's own."""
    before = vars(causal_lm).get("forward")  # a patched one
    causal_lm.forward = forward
    try:
        found: TokenScores = wrapped(input_ids=input_ids_N_T)
    finally:
        del causal_lm.forward
        if before is not None:
            causal_lm.forward = before
    return found


def _scores_in_pieces(
    causal_lm: Any, input_ids_N_T: Tensor, labels_N_T: Tensor, temperature: float, with_entropies: bool
) -> TokenScores:
    """Scores (P,) in row-major order, of at most MAX_LOGITS logits at once."""
    is_scored_N_T = labels_N_T[:, 1:] != IGNORED
    targets_P = labels_N_T[:, 1:][is_scored_N_T]
    hidden = causal_lm.base_model(input_ids=input_ids_N_T, use_cache=False).last_hidden_state[:, :-1]
    hidden_P_H, head = hidden[is_scored_N_T], causal_lm.get_output_embeddings()
    config = causal_lm.config.get_text_config()

    def of(piece_H: Tensor, targets: Tensor) -> TokenScores:
        return _scores(_finished(head(piece_H), config), targets, temperature, with_entropies)

    size = max(1, MAX_LOGITS // config.vocab_size)
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


def _finished(logits: Tensor, config: Any) -> Tensor:
    """Logits in float32, scaled and then capped as the family's `forward` does: Cohere's times
    `logit_scale`, Granite's divided by `logits_scaling`, Gemma 2's c tanh(logits / c)."""
    logits = logits.float()
    for name in _FACTORS:
        if (factor := getattr(config, name, None)) is not None:
            logits = logits * factor
    if (scaling := getattr(config, "logits_scaling", None)) is not None:
        # the same name is a factor there
        logits = logits * scaling if config.model_type == "hyperclovax" else logits / scaling
    cap = getattr(config, "final_logit_softcapping", None)
    return logits if cap is None else cap * torch.tanh(logits / cap)


def _scores(logits: Tensor, targets_P: Tensor, temperature: float, with_entropies: bool) -> TokenScores:
    """`logits` in float32."""
    if temperature != 1.0:
        logits = logits / temperature
    if not with_entropies:
        return TokenScores(-torch.nn.functional.cross_entropy(logits, targets_P, reduction="none"), None)
    logprobs_P_V = logits.log_softmax(-1)
    entropies_P = -(logprobs_P_V.exp() * logprobs_P_V).sum(-1)
    return TokenScores(logprobs_P_V.gather(1, targets_P[:, None])[:, 0], entropies_P)


def scatter_scores(values_P: Tensor, is_scored_N_T: Tensor) -> Tensor:
    """Each value at its position, 0 elsewhere, shape (N, T-1)."""
    return torch.zeros(is_scored_N_T.shape, dtype=values_P.dtype, device=values_P.device).masked_scatter(
        is_scored_N_T, values_P
    )


def pad_right(rows: Sequence[Sequence[float]], value: int) -> Tensor:
    """Rows padded with `value`, shape (N, T), T of the longest."""
    width = max(len(row) for row in rows)
    return torch.tensor([[*row, *[value] * (width - len(row))] for row in rows])


def labels_of(input_ids: Sequence[int], mask: Sequence[int]) -> list[int]:
    """The agent's ids, `IGNORED` elsewhere."""
    return [token if is_agents else IGNORED for token, is_agents in zip(input_ids, mask, strict=True)]
