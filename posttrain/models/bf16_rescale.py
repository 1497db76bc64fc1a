"""Keeps small changes of weights through a rounding to bfloat16.

A weight that came as a bfloat16 number lies on its grid, and what adapters or an optimizer add to
it is rounded away where it is less than half a step: everywhere nearly after a training at a small
rate. A model has many sets of weights that compute the same. So channels are multiplied by numbers
between 0.7 and 1.4 where they are written and divided by these where they are read; its weights
then lie anywhere between two steps, and a change moves as many of them over to the next as it
should.
"""

from typing import Any

import torch
from torch import Tensor, nn

from posttrain.models.adapted import behind_adapters
from posttrain.models.params import LIKE_QWEN3

_GOLDEN = (5**0.5 - 1) / 2


def spread(size: int, device: torch.device) -> Tensor:
    """Numbers whose logarithms lie evenly between those of 0.71 and 1.41."""
    return torch.exp2(torch.arange(size, device=device, dtype=torch.float64) * _GOLDEN % 1 - 0.5).float()


def is_on_grid(model: Any) -> bool:
    """Whether the matrices of the first layer hold bfloat16 numbers alone, as of a model that was
    published in it; False where `off_grid` leaves the model as it is."""
    first = _layers(model)[:1]
    matrices = [module.weight for module in first.modules() if isinstance(module, nn.Linear)]
    return bool(matrices) and all(torch.equal(weight, weight.bfloat16().to(weight.dtype)) for weight in matrices)


@torch.no_grad()
def off_grid(model: Any) -> Any:
    """The model, whose weights in single precision are now others that compute the same; as it is
    where its architecture is another than those `LIKE_QWEN3`."""
    for layer in _layers(model):
        attention, mlp = layer.self_attn, layer.mlp
        _between_norm_and(layer.input_layernorm, attention.q_proj, attention.k_proj, attention.v_proj)
        _between_norm_and(layer.post_attention_layernorm, mlp.gate_proj, mlp.up_proj)
        _between(attention.v_proj, attention.o_proj, attention.head_dim)
        _between(mlp.up_proj, mlp.down_proj, 1)
    return model


def _layers(model: Any) -> Any:
    causal_lm = behind_adapters(model)
    return causal_lm.base_model.layers if causal_lm.config.model_type in LIKE_QWEN3 else nn.ModuleList()


def of_readers(factor: Tensor, num_read: int, head_dim: int) -> Tensor:
    """The numbers of `num_read` columns, of which several heads read each head of `factor`."""
    heads = factor.view(-1, head_dim)
    return heads.repeat_interleave(num_read // len(factor), 0).flatten()


def _between(writer: nn.Linear, reader: nn.Linear, head_dim: int) -> None:
    factor = spread(writer.weight.shape[0], writer.weight.device)
    writer.weight.div_(factor[:, None])
    if writer.bias is not None:
        writer.bias.div_(factor)
    reader.weight.mul_(of_readers(factor, reader.weight.shape[1], head_dim))


def _between_norm_and(norm: Any, *readers: nn.Linear) -> None:
    """The norm's own weights become bfloat16 numbers: rounded, they would all be off a little."""
    weight = norm.weight
    scaled = (weight * spread(len(weight), weight.device)).bfloat16().float()
    factor = torch.where(scaled == 0, 1.0, scaled / weight)
    weight.copy_(torch.where(scaled == 0, weight, scaled))
    for reader in readers:
        reader.weight.div_(factor)
