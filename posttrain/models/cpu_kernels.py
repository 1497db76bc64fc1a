"""Faster kernels for a CPU: float32 products by oneDNN, and causal attention in blocks.

MKL leaves the AVX-512 of AMD's processors unused; oneDNN's products take half its time there, with
float32's rounding. PyTorch's attention kernel for CPUs multiplies pieces so small that it reaches a
fourth of what a matrix product reaches, a third of a training step of the small model. Here a block
of queries is multiplied with all keys up to its end, in one product for each key head. The backward
pass computes the probabilities again (Dao et al. 2022, arXiv 2205.14135, algorithm 4), so memory
stays linear in the tokens. In bfloat16 the scores, the softmax and sums over blocks are float32.

Axes: N rows, H query heads, K key heads, G = H / K query heads of one key head, T tokens, D
dimensions of a head; B queries of a block, C keys up to its end.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "cpu_blocks"
BLOCK = 128  # queries; fewer make small products, more compute what the mask hides
_CPUS = Path("/proc/cpuinfo")  # absent outside Linux, where torch does not compute with MKL


def use_cpu_kernels(model: Any) -> Any:
    if model.config._attn_implementation == "sdpa":
        model.set_attn_implementation(NAME)
    return model


@contextmanager
def fast_products(device: torch.device) -> Iterator[None]:
    """Float32 products by oneDNN inside, where MKL would be slow. For large matrices: the
    decoder's small ones are faster in MKL. The switch is the process's: no other thread may
    compute meanwhile, or its bits would depend on the clock."""
    before = torch.get_float32_matmul_precision()
    if device.type == "cpu" and _is_slow_in_mkl():
        # lets a product go to oneDNN, which rounds to bfloat16 only with AMX; AMD's have none
        torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@cache
def _is_slow_in_mkl() -> bool:
    return (
        torch.backends.cpu.get_cpu_capability() == "AVX512"
        and _CPUS.exists()
        and "AuthenticAMD" in _CPUS.read_text(encoding="utf-8")
    )


class _Attention(torch.autograd.Function):
    @staticmethod
    @torch.autocast("cpu", enabled=False)  # type: ignore[untyped-decorator]
    def forward(ctx: Any, q_N_H_T_D: Tensor, k_N_K_T_D: Tensor, v_N_K_T_D: Tensor, scale: float) -> Tensor:
        q, k, v = _by_key_head(q_N_H_T_D * scale, k_N_K_T_D, v_N_K_T_D)
        out = torch.empty_like(q)
        for start, end in _blocks(q.shape[2]):
            probs = _probabilities(q, k, start, end).to(q.dtype)
            out[:, :, start:end] = torch.bmm(probs.flatten(1, 2), v[:, :end]).view(out[:, :, start:end].shape)
        ctx.save_for_backward(q, k, v, out)
        ctx.scale, ctx.shape = scale, q_N_H_T_D.shape
        return out.view(q_N_H_T_D.shape)

    @staticmethod
    @torch.autocast("cpu", enabled=False)  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad_N_H_T_D: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v, out = ctx.saved_tensors
        grad = grad_N_H_T_D.reshape(q.shape)
        grad_q = torch.empty_like(q)
        grad_k, grad_v = (torch.zeros_like(one, dtype=torch.float32) for one in (k, v))
        for start, end in _blocks(q.shape[2]):
            probs = _probabilities(q, k, start, end)
            of_out = grad[:, :, start:end]
            flat, of_out_flat = probs.to(q.dtype).flatten(1, 2), of_out.flatten(1, 2)
            grad_v[:, :end] += torch.bmm(flat.transpose(1, 2), of_out_flat)
            # through the softmax: dS = P (dP - rowsum(dO O))
            of_scores = torch.bmm(of_out_flat, v[:, :end].transpose(1, 2)).view(probs.shape).float()
            of_scores.sub_((of_out.float() * out[:, :, start:end].float()).sum(-1, keepdim=True)).mul_(probs)
            of_scores = of_scores.to(q.dtype).flatten(1, 2)
            grad_q[:, :, start:end] = torch.bmm(of_scores, k[:, :end]).view(of_out.shape)
            grad_k[:, :end] += torch.bmm(of_scores.transpose(1, 2), q[:, :, start:end].flatten(1, 2))
        num_rows, size = ctx.shape[0], ctx.shape[-1]
        of_keys = (num_rows, -1, ctx.shape[2], size)
        grad_k, grad_v = (one.to(q.dtype).view(of_keys) for one in (grad_k, grad_v))
        return grad_q.mul_(ctx.scale).view(ctx.shape), grad_k, grad_v, None


def _by_key_head(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(N K, G, T, D), (N K, T, D) and (N K, T, D)."""
    num_rows, num_kv, length, size = k.shape
    return (
        q.reshape(num_rows * num_kv, -1, length, size),
        k.reshape(-1, length, size),
        v.reshape(-1, length, size),
    )


def _blocks(length: int) -> list[tuple[int, int]]:
    return [(start, min(start + BLOCK, length)) for start in range(0, length, BLOCK)]


def _probabilities(q: Tensor, k: Tensor, start: int, end: int) -> Tensor:
    """Attention probabilities of a block of queries over the keys up to its end, (N K, G, B, C), in
    float32."""
    block = q[:, :, start:end].float()
    scores = torch.bmm(block.flatten(1, 2), k[:, :end].float().transpose(1, 2)).view(*block.shape[:3], end)
    ahead_B_B = torch.full((end - start, end - start), float("-inf")).triu_(1)
    scores[..., start:] += ahead_B_B
    return scores.softmax(-1)


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Interface of transformers. Other cases than plain causal attention in float32 or bfloat16 go
    through PyTorch's kernels."""
    is_causal = getattr(module, "is_causal", True) and kwargs.get("is_causal") is not False
    is_plain = is_causal and attention_mask is None and not dropout and not kwargs.get("sliding_window")
    is_cast = torch.is_autocast_enabled("cpu")
    is_here = query.device.type == "cpu" and query.dtype == (torch.bfloat16 if is_cast else torch.float32)
    if not (is_plain and is_here and query.shape[2] == key.shape[2]):
        found: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
        return found
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    out: Tensor = _Attention.apply(query, key, value, scale)  # type: ignore[no-untyped-call]
    return out.transpose(1, 2).contiguous(), None


def _mask(*args: Any, attention_mask: Tensor | None = None, local_size: int | None = None, **kwargs: Any) -> Any:
    """PyTorch's mask; none for rows padded on the right, where no real token looks."""
    if attention_mask is not None and local_size is None and bool((attention_mask.diff(dim=-1) <= 0).all()):
        attention_mask = None
    return sdpa_mask(*args, attention_mask=attention_mask, local_size=local_size, **kwargs)


AttentionInterface.register(NAME, _attend)
AttentionMaskInterface.register(NAME, _mask)
