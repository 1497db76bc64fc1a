"""The conflict between reasoning and calls of tools: the cosine between the gradients of their
losses, as gradient surgery measures it (PCGrad, arXiv 2001.06782). Below 0 a step that helps one
hurts the other."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from posttrain.models.codec import CALL, REASONING
from posttrain.models.token_logprobs import agent_logprobs

_LAYER = re.compile(r"\blayers\.(\d+)\.")


def gradient_cosines(model: Any, batches: Sequence[Mapping[str, Tensor]]) -> dict[str, float]:
    """Cosine between the gradients of the summed loss of call tokens and of reasoning tokens:
    `grad_cosine` over all trained weights, and `grad_cosine_layer_<n>` and `grad_cosine_rest` of
    parts. NaN where one has no token or no gradient. `batches` have `input_ids`, `labels` and
    `category`, (N, T). The model's own gradients stay as they are."""
    named = _trained(model)
    calls, reasoning = (_gradients(model, [one for _, one in named], batches, kind) for kind in (CALL, REASONING))
    sums: dict[str, Tensor] = {}
    for (name, _), ours, theirs in zip(named, calls, reasoning, strict=True):
        products = torch.stack([(ours * theirs).sum(), (ours * ours).sum(), (theirs * theirs).sum()])
        for key in (_name(name), "grad_cosine"):
            sums[key] = sums.get(key, torch.zeros(3, dtype=torch.float64)) + products
    return {key: float(dot / (own * other).sqrt()) for key, (dot, own, other) in sums.items()}


def cosine_names(model: Any) -> list[str]:
    """The names that `gradient_cosines` gives."""
    return list(dict.fromkeys(["grad_cosine", *(_name(name) for name, _ in _trained(model))]))


def _trained(model: Any) -> list[tuple[str, Tensor]]:
    return [(name, one) for name, one in model.named_parameters() if one.requires_grad]


def _name(weight: str) -> str:
    found = _LAYER.search(weight)
    return f"grad_cosine_layer_{found[1]}" if found else "grad_cosine_rest"  # embeddings, norm and head


def _gradients(
    model: Any, weights: Sequence[Tensor], batches: Sequence[Mapping[str, Tensor]], kind: int
) -> list[Tensor]:
    total = [torch.zeros_like(one, dtype=torch.float64, device="cpu") for one in weights]
    for batch in batches:
        if not (batch["category"] == kind).any():
            continue
        logprobs_N_T = agent_logprobs(model, batch["input_ids"].to(model.device), batch["labels"].to(model.device))
        is_of_kind_N_T = (batch["category"][:, 1:] == kind).to(logprobs_N_T.device)
        loss = -torch.where(is_of_kind_N_T, logprobs_N_T, 0.0).sum()
        found = torch.autograd.grad(loss, weights, allow_unused=True)
        for own, gradient in zip(total, found, strict=True):
            if gradient is not None:
                own.add_(gradient.detach().double().cpu())
    return total
