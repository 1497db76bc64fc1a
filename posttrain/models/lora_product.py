"""LoRA forward pass in bfloat16, W x + s B A x, that is rounded once.

PEFT rounds W x to bfloat16 before it adds s B A x. A young adapter's term is less than half the
distance between two bfloat16 numbers there, so most of what was learnt would be missing from the
result and from the loss. Here both are one product, [W, s B] [x, A x], which the hardware sums in
float32 and rounds at the end.
"""

from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from posttrain.models.quantization import dense_weight


def rounding_once(model: Any, dtype: torch.dtype) -> Any:
    """Patch the LoRA layers of a model to compute so in `dtype`, on plain and on 4-bit matrices;
    copies of the model keep the patch. 8-bit layers are left alone: their product rounds x, too."""
    for module in model.modules():
        base = getattr(module, "base_layer", None)
        if isinstance(base, nn.Linear) and (type(base) is nn.Linear or type(base).__name__ == "Linear4bit"):
            module.compute_dtype = dtype
            module.forward = MethodType(_forward, module)
    return model


def _forward(self: Any, x: Tensor) -> Tensor:
    """Forward pass of a LoRA layer with one active adapter."""
    if self.disable_adapters or self.merged:
        plain: Tensor = type(self).forward(self, x)
        return plain
    (name,) = self.active_adapters
    x = x.to(self.compute_dtype)
    low = functional.linear(self.lora_dropout[name](x), self.lora_A[name].weight.to(x.dtype))
    up = (self.lora_B[name].weight * self.scaling[name]).to(x.dtype)
    summed: Tensor = _Product.apply(x, low, up, self.base_layer)  # type: ignore[no-untyped-call]
    return summed


class _Product(torch.autograd.Function):
    """[W, s B] [x, A x] of x (…, in), A x (…, r), s B (out, r) and the frozen layer of W (out, in),
    shape (…, out). Autograd's own would keep the concatenated matrix for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, low: Tensor, up: Tensor, base: nn.Linear) -> Tensor:
        ctx.save_for_backward(low, up)
        ctx.base = base
        weight = torch.cat([dense_weight(base).to(x.dtype), up], dim=1)
        bias = None if base.bias is None else base.bias.to(x.dtype)
        return functional.linear(torch.cat([x, low], dim=-1), weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None]:
        low, up = ctx.saved_tensors
        of_x = grad @ dense_weight(ctx.base).to(grad.dtype) if ctx.needs_input_grad[0] else None
        return of_x, grad @ up, grad.flatten(0, -2).T @ low.flatten(0, -2), None
