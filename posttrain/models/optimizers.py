"""Optimizers: AdamW, 8-bit AdamW, and Muon for hidden matrices with AdamW for embeddings, head and
norms."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from posttrain.models.adapters import behind_adapters
from posttrain.models.params import BETAS, OptimizerKind, OptimizerParams, Schedule
from posttrain.models.quantization import bitsandbytes_for

# AdamW's rate relative to Muon's: at the full one, embeddings of rare tokens never settle, and the
# model does not learn to copy
OTHERS_RATE = 0.3


class OptimizerPair(torch.optim.Optimizer):
    """Muon and AdamW as one optimizer: a scheduler, TRL or a checkpoint sees the groups of both."""

    def __init__(self, muon: torch.optim.Optimizer, adamw: torch.optim.Optimizer) -> None:
        self.parts = (muon, adamw)
        super().__init__([*muon.param_groups, *adamw.param_groups], {})
        # the parts' own dicts, which super() copied: a rate set here is a rate set there
        self.param_groups = [*muon.param_groups, *adamw.param_groups]

    def step(self, _closure: Any = None) -> None:  # type: ignore[override]
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


def optimizer_of(model: nn.Module, params: OptimizerParams) -> torch.optim.Optimizer:
    """The optimizer that the knobs ask for."""
    return build_optimizer(model, params.optimizer, params.lr, betas=params.betas, weight_decay=params.weight_decay)


def build_optimizer(
    model: nn.Module,
    kind: OptimizerKind,
    lr: float,
    *,
    betas: tuple[float, float] = BETAS,
    weight_decay: float = 0.0,
) -> torch.optim.Optimizer:
    """The optimizer of a model's trainable weights. `betas` are of every AdamW; vectors (norms,
    biases) do not decay, as in transformers' trainers.

    `muon`: 2-D matrices that are neither an embedding nor the head, LoRA adapters among them, go to
    Muon at `lr` (`match_rms_adamw` scales its step by 0.2 sqrt(max(rows, columns)), arXiv
    2502.16982), the rest to AdamW at `OTHERS_RATE` of it. `adamw_8bit`: its two averages in 8 bits,
    but for small tensors (arXiv 2110.02861).
    """
    embeddings = {id(weight) for module in _embeddings(model) for weight in module.parameters()}
    trainable = [weight for weight in model.parameters() if weight.requires_grad]
    how: dict[str, Any] = {"betas": betas, "weight_decay": weight_decay}
    if kind == "adamw":
        return _adamw(trainable, lr, **how)
    if kind == "adamw_8bit":
        optim = bitsandbytes_for("optimizer is adamw_8bit").optim
        return optim.AdamW8bit(_by_decay(trainable, weight_decay), lr=lr, **how)  # type: ignore[no-any-return]
    matrices = [weight for weight in trainable if weight.ndim == 2 and id(weight) not in embeddings]
    others = [weight for weight in trainable if weight.ndim != 2 or id(weight) in embeddings]
    muon = Muon(matrices, lr=lr, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw")
    return OptimizerPair(muon, _adamw(others, OTHERS_RATE * lr, **how)) if others else muon


def rate_at(done_frac: float, warmup_frac: float, schedule: Schedule) -> float:
    """Factor of the learning rate when `done_frac` of the training is done, by transformers'
    schedules. Of a warm-up of 0.2, at 0, 0.1 and 0.2 it is 0, 1/2 and 1, at 0.6 of `linear` and
    of `cosine` 1/2."""
    if done_frac < warmup_frac:
        return done_frac / warmup_frac
    left = (1 - done_frac) / (1 - warmup_frac)
    match schedule:
        case "linear":
            return left
        case "constant":
            return 1.0
        case "cosine":
            return (1 - math.cos(math.pi * left)) / 2


def _embeddings(model: nn.Module) -> list[nn.Module]:
    found: list[nn.Module] = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    head = getattr(behind_adapters(model), "get_output_embeddings", lambda: None)()
    return found if head is None else [*found, head]


def _adamw(
    weights: Sequence[nn.Parameter], lr: float, *, betas: tuple[float, float], weight_decay: float
) -> torch.optim.Optimizer:
    # on a GPU the unfused step makes temporaries as large as all weights
    fused = True if all(weight.is_cuda for weight in weights) else None
    groups = _by_decay(weights, weight_decay)
    return torch.optim.AdamW(groups, lr=lr, betas=betas, weight_decay=weight_decay, fused=fused)


def _by_decay(weights: Sequence[nn.Parameter], weight_decay: float) -> Any:
    """The weights, in two groups where some decay and others do not."""
    vectors = [weight for weight in weights if weight.ndim < 2]
    if not weight_decay or not vectors:
        return weights
    matrices = {"params": [weight for weight in weights if weight.ndim >= 2]}
    return [*([matrices] if matrices["params"] else []), {"params": vectors, "weight_decay": 0.0}]


class Muon(torch.optim.Muon):
    """torch.optim.Muon (Jordan 2024), its Newton-Schulz iteration in float32 where all weights are
    on a CPU: torch's is in bfloat16, which a processor without instructions for it emulates, 21 ms
    for a matrix of 256 x 96 that takes 0.9 in float32."""

    @torch.no_grad()
    def step(self, _closure: Any = None) -> None:  # type: ignore[override]
        """One step by the gradients as they are."""
        if any(weight.device.type != "cpu" for group in self.param_groups for weight in group["params"]):
            super().step()  # type: ignore[no-untyped-call]
            return
        for group in self.param_groups:
            weights: list[Tensor] = []
            gradients: list[Tensor] = []
            averages: list[Tensor] = []
            self._init_group(group, weights, gradients, averages)
            for weight, gradient, average in zip(weights, gradients, averages, strict=True):
                average.lerp_(gradient, 1 - group["momentum"])
                wanted = gradient.lerp(average, group["momentum"]) if group["nesterov"] else average
                moved = orthogonalised(wanted, group["ns_coefficients"], group["ns_steps"], group["eps"])
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                weight.add_(moved, alpha=-group["lr"] * _rate_for(weight.shape, group["adjust_lr_fn"]))


def orthogonalised(matrix: Tensor, coefficients: tuple[float, float, float], num_steps: int, eps: float) -> Tensor:
    """A matrix with all singular values brought near 1 by `num_steps` of the quintic
    Newton-Schulz iteration."""
    a, b, c = coefficients
    is_tall = matrix.shape[0] > matrix.shape[1]
    found = matrix.float().T if is_tall else matrix.float()
    found = found / found.norm().clamp(min=eps)
    for _ in range(num_steps):
        gram = found @ found.T
        found = torch.addmm(found, torch.addmm(gram, gram, gram, beta=b, alpha=c), found, beta=a)
    return (found.T if is_tall else found).to(matrix.dtype)


def _rate_for(shape: torch.Size, adjusted: str | None) -> float:
    rows, columns = shape
    return 0.2 * math.sqrt(max(rows, columns)) if adjusted == "match_rms_adamw" else math.sqrt(max(1, rows / columns))
