"""Elastic weight consolidation (EWC, arXiv 1612.00796): weights that mattered for what was learnt
before are held near the values that training began from.

The loss gains λ/2 Σ_i F_i (θ_i - θ*_i)² (eq. 3), θ* the weights at first, F the diagonal of the
empirical Fisher information on rows learnt before: the mean over rows of the squared gradient of a
row's log-likelihood. Muon makes all steps of a matrix equally long, so there λ turns a step and
shortens none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posttrain.models import distributed
from posttrain.models.codec import TokenRow
from posttrain.models.cpu_kernels import fast_products
from posttrain.models.parts import parts_beside
from posttrain.models.sharding import named_weights
from posttrain.models.token_logprobs import agent_logprobs, labels_of
from posttrain.runtime.exits import ConfigurationError, DataError

NUM_ROWS = 256


@dataclass(frozen=True, slots=True)
class Ewc:
    """The penalty of a training: λ, and θ* and F of each trained weight by its name."""

    weight: float
    start: Mapping[str, Tensor]
    fisher: Mapping[str, Tensor]

    @torch.no_grad()
    def add_gradients(self, model: torch.nn.Module) -> Tensor:
        """Add λ F (θ - θ*) to the gradients of `model`; returns the penalty, a scalar."""
        penalties = []
        for name, weight in model.named_parameters():
            if name in self.fisher:
                moved = weight - self.start[name]
                pull = self.weight * self.fisher[name] * moved
                penalties.append((pull * moved).sum() / 2)
                weight.grad = pull if weight.grad is None else weight.grad.add_(pull)
        return torch.stack(penalties).sum()


def ewc_of(model: Any, rows: Sequence[TokenRow], weight: float, *, seed: int) -> Ewc:
    """Hold `model` at its weights as they are now, by their Fisher information on at most NUM_ROWS
    of the rows, drawn by `seed`. Raises DataError without rows, ConfigurationError where processes
    share out the weights."""
    if distributed.is_sharded() or distributed.is_deepspeed():
        raise ConfigurationError(
            f"ewc_weight is {weight:g}, and FSDP and DeepSpeed cut the weights into shards, which the penalty cannot "
            "reach: take processes that each have the whole model (infra/accelerate/ddp.yaml), or replay_frac"
        )
    if not rows:
        raise DataError(f"ewc_weight is {weight:g}, and there are no demonstrations (the Python API has none)")
    drawn = np.random.default_rng(seed).permutation(len(rows))[:NUM_ROWS]
    return Ewc(weight, trained_weights(model), fisher_diagonal(model, [rows[place] for place in drawn]))


def trained_weights(model: Any) -> dict[str, Tensor]:
    """A copy of each trained weight."""
    return {name: one.detach().clone() for name, one in named_weights(model).items() if one.requires_grad}


def fisher_diagonal(model: Any, rows: Sequence[TokenRow]) -> dict[str, Tensor]:
    """Mean over rows of the squared gradient of a row's log-likelihood (the sum over the agent's
    tokens), for each trained weight, in its shape; without dropout."""
    weights = {name: one for name, one in model.named_parameters() if one.requires_grad}
    found = {name: torch.zeros_like(one) for name, one in weights.items()}
    model.eval()
    with fast_products(model.device), parts_beside(model):
        for row in rows:
            ids = torch.tensor([row.input_ids], device=model.device)
            labels = torch.tensor([labels_of(row.input_ids, row.mask)], device=model.device)
            likelihood = agent_logprobs(model, ids, labels).sum()
            gradients = torch.autograd.grad(likelihood, list(weights.values()), allow_unused=True)
            for name, gradient in zip(weights, gradients, strict=True):
                if gradient is not None:
                    found[name] += gradient.square() / len(rows)
    return found
