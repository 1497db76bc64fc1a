"""Which optimizer moves which weights. Muon orthogonalises the step of a hidden matrix; embeddings
and norms have no such geometry and keep AdamW."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from posttrain.models.adapted import behind_adapters
from posttrain.models.muon import Muon
from posttrain.models.params import OptimizerKind
from posttrain.models.quantization import bitsandbytes_for

BETAS = (0.9, 0.95)
OTHERS_RATE = 0.3  # of Muon's: at the full rate embeddings of rare tokens never settle, and copying is not learnt


class OptimizerPair(torch.optim.Optimizer):
    """Muon and AdamW behind the face of one optimizer, so that a scheduler, TRL or a checkpoint
    sees the groups of both."""

    def __init__(self, muon: torch.optim.Optimizer, adamw: torch.optim.Optimizer) -> None:
        self.parts = (muon, adamw)
        super().__init__([*muon.param_groups, *adamw.param_groups], {})
        self.param_groups = [
            *muon.param_groups,
            *adamw.param_groups,
        ]  # the same dicts: a rate set here is a rate set there

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step of both; a closure is not supported."""
        if closure is not None:
            raise ValueError(
                "a closure would be evaluated once for each of the two optimizers; compute the loss before the step"
            )
        for part in self.parts:
            part.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for part, state in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        self.param_groups = [group for part in self.parts for group in part.param_groups]


def build_optimizer(model: nn.Module, kind: OptimizerKind, lr: float) -> torch.optim.Optimizer:
    """The optimizer of a model's trainable weights.

    `adamw`: one rate for all. `muon`: 2-D matrices that are neither an embedding nor the head go to
    Muon (Jordan 2024; `match_rms_adamw` scales its step by 0.2 sqrt(max(rows, columns)), arXiv
    2502.16982) at `lr`, the rest to AdamW at `OTHERS_RATE` of it. Adapters of LoRA are 2-D matrices
    too. `adamw_8bit`: AdamW's two averages in eight bits each (arXiv 2110.02861; bitsandbytes),
    but of small tensors. Weight decay is 0: runs are short.
    """
    embeddings = {id(weight) for module in _embeddings(model) for weight in module.parameters()}
    trainable = [weight for weight in model.parameters() if weight.requires_grad]
    if kind == "adamw":
        return _adamw(trainable, lr)
    if kind == "adamw_8bit":
        eight_bits: torch.optim.Optimizer = bitsandbytes_for("optimizer is adamw_8bit").optim.AdamW8bit(
            trainable, lr=lr, betas=BETAS, weight_decay=0.0
        )
        return eight_bits
    matrices = [weight for weight in trainable if weight.ndim == 2 and id(weight) not in embeddings]
    others = [weight for weight in trainable if weight.ndim != 2 or id(weight) in embeddings]
    muon = Muon(matrices, lr=lr, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
    return OptimizerPair(muon, _adamw(others, OTHERS_RATE * lr)) if others else muon


def _embeddings(model: nn.Module) -> list[nn.Module]:
    """Those of the tokens that are read, and the matrix of those that are written, tied or not."""
    found: list[nn.Module] = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    head = getattr(behind_adapters(model), "get_output_embeddings", lambda: None)()
    return found if head is None else [*found, head]


def _adamw(weights: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    found = list(weights)
    # on a GPU the default makes temporaries as large as all weights
    fused = True if all(weight.is_cuda for weight in found) else None
    return torch.optim.AdamW(found, lr=lr, betas=BETAS, weight_decay=0.0, fused=fused)
