"""Fuses a decoder's weights for fast generation: products that each forward pass would compute are
computed once.

Folded, exactly up to float32 rounding: RMSNorm weights and the attention scale into the matrices
that follow them, LoRA's B A into W, q, k and v into one matrix, gate and up into another, and the
halves of each head interleaved so that the rotary embedding is one complex multiplication (q·k does
not depend on the order of a head's dimensions). They are copies, read again after every optimizer
step.

With adapters, and rounded to bfloat16, matrices that no norm is folded into are taken off its grid
before (`models/precision.py`): those that read values and the MLP's inner channels.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from posttrain.models.adapters import behind_adapters, dense, is_adapted_layer
from posttrain.models.params import LIKE_QWEN3
from posttrain.models.precision import channel_scales, compute_dtype, reader_scales
from posttrain.runtime.exits import ConfigurationError

ROPE_TYPES = ("default", "linear", "llama3", "yarn")  # those whose frequencies do not depend on the length of the text


@dataclass(frozen=True, slots=True)
class FusedLayer:
    """One decoder layer: H query heads, K key-value heads, D dimensions a head, M the MLP's inner
    size.

    Weights are (out, in): `qkv` ((H + 2 K) D, hidden), `gate_up` (2 M, hidden); `head_norm` (H + K,
    D), None where heads are not normalised.
    """

    qkv: Tensor
    qkv_bias: Tensor | None
    head_norm: Tensor | None
    head_eps: float
    out: Tensor
    out_bias: Tensor | None
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None
    activation: Callable[[Tensor], Tensor]
    attention_eps: float
    mlp_eps: float


@dataclass(frozen=True, slots=True)
class FusedWeights:
    """A whole decoder. `inv_freq` (D/2,) and `rope_scale` are the rotary embedding's; `head` (V,
    hidden) has the final norm folded in."""

    embedding: Tensor
    layers: tuple[FusedLayer, ...]
    head: Tensor
    head_bias: Tensor | None
    final_eps: float
    inv_freq: Tensor
    rope_scale: float
    num_heads: int
    num_kv_heads: int
    head_dim: int


def fuse(model: nn.Module, *, takes: bool = False) -> FusedWeights:
    """Fuse the current weights of a causal LM, adapters included, in the type that it computes in.
    With `takes` the model loses its weights, layer by layer, so that no two copies are in memory.
    Raises ConfigurationError where the architecture is none of `LIKE_QWEN3` or a part of it is not
    as in plain transformers."""
    causal_lm = behind_adapters(model)
    config = causal_lm.config
    _require(config.model_type in LIKE_QWEN3, f"model type {config.model_type!r} is not one of {', '.join(LIKE_QWEN3)}")
    _require(
        all(kind == "full_attention" for kind in _layer_types(config)),
        "a layer has a sliding window",
    )
    decoder = causal_lm.model
    rotary = decoder.rotary_emb
    _require(
        rotary.rope_type in ROPE_TYPES, f"rotary embedding {rotary.rope_type!r} is not one of {', '.join(ROPE_TYPES)}"
    )
    attention = decoder.layers[0].self_attn
    head_dim = attention.head_dim
    _require(
        2 * len(rotary.inv_freq) == head_dim,
        f"the rotary embedding turns {2 * len(rotary.inv_freq)} of a head's {head_dim} dimensions",
    )
    _require(type(decoder.embed_tokens) is nn.Embedding, f"the embedding is a {type(decoder.embed_tokens).__name__}")
    head, head_bias = dense(causal_lm.lm_head)
    dtype = compute_dtype(causal_lm)
    with torch.no_grad():
        fused = FusedWeights(
            embedding=decoder.embed_tokens.weight.detach().to(dtype, copy=True),
            layers=tuple(_fuse_layer(layer, dtype, takes=takes) for layer in decoder.layers),
            head=_scaled(head, decoder.norm.weight).to(dtype),
            head_bias=None if head_bias is None else head_bias.to(dtype),
            final_eps=decoder.norm.variance_epsilon,
            inv_freq=rotary.inv_freq.detach().float().clone(),
            rope_scale=rotary.attention_scaling,
            num_heads=config.num_attention_heads,
            num_kv_heads=config.num_key_value_heads,
            head_dim=head_dim,
        )
    if takes:
        _empty(model)
    return fused


def _empty(module: nn.Module) -> None:
    for part in module.modules():
        for name, weight in part.named_parameters(recurse=False):
            setattr(part, name, nn.Parameter(weight.new_empty(0), requires_grad=False))


def _layer_types(config: Any) -> list[str]:
    """Attention type of each layer; Mistral's configuration has one window for all, or none."""
    if found := getattr(config, "layer_types", None):
        return list(found)
    has_window = config.model_type == "mistral" and config.sliding_window is not None
    return ["sliding_attention" if has_window else "full_attention"]


def _fuse_layer(layer: Any, dtype: torch.dtype, *, takes: bool) -> FusedLayer:
    fused = _in_type(_fused_layer(layer, dtype), dtype)
    if takes:
        _empty(layer)
    return fused


def _fused_layer(layer: Any, dtype: torch.dtype) -> FusedLayer:
    attention, mlp = layer.self_attn, layer.mlp
    qkv, qkv_bias, head_norm = _fuse_heads(attention, layer.input_layernorm.weight)
    gate, gate_bias = dense(mlp.gate_proj)
    up, up_bias = dense(mlp.up_proj)
    out, out_bias = dense(attention.o_proj)
    down, down_bias = dense(mlp.down_proj)
    if dtype != torch.float32 and (is_adapted_layer(attention.o_proj) or is_adapted_layer(mlp.down_proj)):
        of_v, of_up = channel_scales(attention.v_proj.out_features, out.device), channel_scales(len(up), up.device)
        # v divided, and the columns of `out` that read it multiplied, cancel; likewise up and down.
        qkv, qkv_bias = _divided(qkv, qkv_bias, of_v)
        out = out.float() * reader_scales(of_v, out.shape[1], attention.head_dim)
        up, up_bias = _divided(up, up_bias, of_up)
        down = down.float() * of_up
    return FusedLayer(
        qkv=qkv,
        qkv_bias=qkv_bias,
        head_norm=head_norm,
        head_eps=attention.q_norm.variance_epsilon if head_norm is not None else 0.0,
        out=out.clone(),
        out_bias=out_bias,
        gate_up=_scaled(torch.cat([gate, up]), layer.post_attention_layernorm.weight),
        gate_up_bias=_concatenated([gate_bias, up_bias]),
        down=down.clone(),
        down_bias=down_bias,
        activation=mlp.act_fn,
        attention_eps=layer.input_layernorm.variance_epsilon,
        mlp_eps=layer.post_attention_layernorm.variance_epsilon,
    )


def _divided(weight: Tensor, bias: Tensor | None, by: Tensor) -> tuple[Tensor, Tensor | None]:
    """Divide the last `len(by)` rows and their biases by `by`, in float32."""
    divisor = torch.cat([by.new_ones(len(weight) - len(by)), by])
    return weight.float() / divisor[:, None], None if bias is None else bias.float() / divisor


def _in_type(layer: FusedLayer, dtype: torch.dtype) -> FusedLayer:
    values = {field.name: getattr(layer, field.name) for field in fields(layer)}
    cast: dict[str, Any] = {name: value.to(dtype) for name, value in values.items() if isinstance(value, Tensor)}
    return replace(layer, **cast)


def _fuse_heads(attention: Any, norm_weight: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Matrix, bias and head norms of q, k and v: heads interleaved, the scale of q·k in q's norm,
    or in q itself."""
    dim, scale = attention.head_dim, attention.scaling
    has_head_norm = hasattr(attention, "q_norm")
    weights, biases = [], []
    for projection, factor in (
        (attention.q_proj, 1.0 if has_head_norm else scale),
        (attention.k_proj, 1.0),
        (attention.v_proj, 1.0),
    ):
        weight, bias = dense(projection)
        is_turned = projection is not attention.v_proj
        weights.append((_interleaved(weight, dim) if is_turned else weight) * factor)
        biases.append(None if bias is None else (_interleaved(bias, dim) if is_turned else bias) * factor)
    head_norm = None
    if has_head_norm:
        num_heads, num_kv_heads = len(weights[0]) // dim, len(weights[1]) // dim
        of_q = _interleaved(attention.q_norm.weight, dim) * scale
        of_k = _interleaved(attention.k_norm.weight, dim)
        head_norm = torch.cat([of_q.expand(num_heads, dim), of_k.expand(num_kv_heads, dim)])
    return _scaled(torch.cat(weights), norm_weight), _concatenated(biases), head_norm


def _interleaved(rows: Tensor, dim: int) -> Tensor:
    """Place row i beside row i + dim/2 within each head, the pair that the rotary embedding turns:
    0 1 2 3 becomes 0 2 1 3."""
    halves = rows.reshape(-1, 2, dim // 2, *rows.shape[1:])
    return halves.transpose(1, 2).reshape(rows.shape)


def _scaled(weight: Tensor, norm_weight: Tensor) -> Tensor:
    """The matrix with an input norm's weight folded in, in float32."""
    return (weight.float() * norm_weight.detach().float()).to(weight.dtype)


def _concatenated(biases: list[Tensor | None]) -> Tensor | None:
    """The biases as one vector; None where no projection has one."""
    present = [bias for bias in biases if bias is not None]
    return torch.cat(present) if present else None


def _require(is_so: bool, problem: str) -> None:
    if not is_so:
        raise ConfigurationError(
            f"the engine in this process cannot generate with this model: {problem}. vLLM can: POSTTRAIN_ENGINE=vllm, "
            "docs/serve.md"
        )
