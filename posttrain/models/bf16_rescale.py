"""Rescales channels so that small updates of weights survive rounding to bfloat16.

A weight published in bfloat16 lies on its grid, so an update below half a step is rounded away:
after training at a small rate nearly all are. But many sets of weights compute one function: each
channel is divided by a number between 0.7 and 1.4 where it is written and multiplied by it where it
is read. The weights then lie anywhere between grid points, and an update moves the right share of
them to the next.
"""

from typing import Any

import torch
from torch import Tensor, nn

from posttrain.models.adapters import behind_adapters
from posttrain.models.params import LIKE_QWEN3

_GOLDEN = (5**0.5 - 1) / 2


def channel_scales(size: int, device: torch.device) -> Tensor:
    """A scale per channel, log-uniform in [0.71, 1.41): multiples of the golden ratio modulo 1
    are spread evenly, without a random draw."""
    return torch.exp2(torch.arange(size, device=device, dtype=torch.float64) * _GOLDEN % 1 - 0.5).float()


def has_bf16_weights(model: Any) -> bool:
    """True if the first layer's matrices lie on bfloat16's grid; False for architectures that
    `bf16_rescale` leaves as they are."""
    first = _layers(model)[:1]
    matrices = [module.weight for module in first.modules() if isinstance(module, nn.Linear)]
    return bool(matrices) and all(torch.equal(weight, weight.bfloat16().to(weight.dtype)) for weight in matrices)


@torch.no_grad()
def bf16_rescale(model: Any) -> Any:
    """Rescale float32 weights of a `LIKE_QWEN3` model in place; it computes the same."""
    for layer in _layers(model):
        attention, mlp = layer.self_attn, layer.mlp
        _rescale_norm(layer.input_layernorm, attention.q_proj, attention.k_proj, attention.v_proj)
        _rescale_norm(layer.post_attention_layernorm, mlp.gate_proj, mlp.up_proj)
        _rescale_between(attention.v_proj, attention.o_proj, attention.head_dim)
        _rescale_between(mlp.up_proj, mlp.down_proj, 1)
    return model


def _layers(model: Any) -> Any:
    causal_lm = behind_adapters(model)
    return causal_lm.base_model.layers if causal_lm.config.model_type in LIKE_QWEN3 else nn.ModuleList()


def reader_scales(scales: Tensor, num_read: int, head_dim: int) -> Tensor:
    """Scales of `num_read` columns: with grouped-query attention several query heads read each
    value head."""
    heads = scales.view(-1, head_dim)
    return heads.repeat_interleave(num_read // len(scales), 0).flatten()


def _rescale_between(writer: nn.Linear, reader: nn.Linear, head_dim: int) -> None:
    scales = channel_scales(writer.weight.shape[0], writer.weight.device)
    writer.weight.div_(scales[:, None])
    if writer.bias is not None:
        writer.bias.div_(scales)
    reader.weight.mul_(reader_scales(scales, reader.weight.shape[1], head_dim))


def _rescale_norm(norm: Any, *readers: nn.Linear) -> None:
    weight = norm.weight
    # Only matrices may lie between bfloat16 numbers: a norm's weight that is rounded later changes
    # a whole channel. So it becomes a bfloat16 number here, and the readers get the exact quotient.
    scaled = (weight * channel_scales(len(weight), weight.device)).bfloat16().float()
    scales = torch.where(scaled == 0, 1.0, scaled / weight)
    weight.copy_(torch.where(scaled == 0, weight, scaled))
    for reader in readers:
        reader.weight.div_(scales)
