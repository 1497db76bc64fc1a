"""Mixed precision: the dtype of weights and of matrix products in training.

Trained weights are float32, whatever `model.dtype` is: bfloat16 has eight significant bits, and at
a rate of 1e-6 hardly an update reaches half a step. With `bfloat16` matrix products and their
gradients are computed in it (autocast), and weights frozen beneath adapters are stored in it. A
trained weight takes 4 bytes, 4 for its gradient and the optimizer's, as much as bfloat16 with a
master copy.

A weight published in bfloat16 lies on its grid, so in its products an update below half a step is
rounded away. But many sets of weights compute one function: `bf16_rescale` divides each channel by
a number between 0.7 and 1.4 where it is written and multiplies by it where it is read. The weights
then lie anywhere between grid points, and an update moves the right share of them to the next.
"""

import copy
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from posttrain.models import distributed
from posttrain.models.adapters import behind_adapters
from posttrain.models.params import LIKE_QWEN3, Dtype, LoraAdapter, PretrainedModel, ScratchModel
from posttrain.models.sharding import sharded_copy

_GOLDEN = (5**0.5 - 1) / 2


def loaded_dtype(params: ScratchModel | PretrainedModel) -> Dtype:
    return params.dtype if isinstance(params.adapter, LoraAdapter) else "float32"


def computing_in(model: Any, dtype: Dtype) -> Any:
    """Patch a model's forward passes (whole, decoder, head) to autocast to `dtype`; copies keep
    the patch."""
    if dtype != "float32":
        model.compute_dtype = getattr(torch, dtype)
        modules = (model, model.base_model, model.get_output_embeddings())
        for module in dict.fromkeys(one for one in modules if one is not None):
            # the cache would hold a cast copy of every weight until the forward pass ends
            context = torch.autocast(model.device.type, model.compute_dtype, cache_enabled=False)
            module.forward = MethodType(context(type(module).forward), module)
    return model


def compute_dtype(model: Any) -> torch.dtype:
    inner = behind_adapters(model)
    found: torch.dtype = getattr(inner, "compute_dtype", inner.dtype)
    return found


def frozen_copy(model: Any) -> Any:
    """A copy for evaluation with equal results, its matrices in the dtype that autocast rounds
    them to; of a sharded model sharded alike."""
    return sharded_copy(model, _frozen) if distributed.is_sharded() else _frozen(copy.deepcopy(model))


def _frozen(copied: Any) -> Any:
    dtype = compute_dtype(copied.eval().requires_grad_(False))
    tied = copied.get_input_embeddings().weight
    for module in copied.modules():
        if isinstance(module, nn.Linear) and module.weight is not tied:
            module.to(dtype)
    return copied


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
