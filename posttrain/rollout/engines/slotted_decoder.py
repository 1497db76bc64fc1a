"""Forward pass of a Llama-family decoder over a KV cache of fixed slots: one pass to read many new
tokens, one to write a token in every slot.

Axes: S slots, N slots in use, R requests, P packed tokens (all requests in one row, without
padding), T tokens of a request padded, C context positions, H query heads, K key-value heads, D
dimensions a head, V vocabulary. Query heads that share a KV head are neighbours, as in
transformers.
"""

import math
import mmap
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from posttrain.rollout.engines.fused_weights import FusedLayer, FusedWeights

# On a CPU attention reads the cache of so many slots at a time, up to the longest context of these,
_RANGE = 16
_SPAN_STEP = 16  # rounded up to a multiple of this
# MKL splits the sums of a product of so many rows between threads: the bits depend on their number.
_SPLIT_ROWS, _ROW_STEP = frozenset({5, 6, 7, 9, 10, 11}), 4
# So does the attention kernel with the keys of 1 or 3 queries.
_MIN_WIDTH = 4
_CACHE_SHARE = 3  # one part in so many of a GPU's free memory: the rest is for what trains beside it
_MAX_PACKED_TOKENS = 1024  # read in one pass: bounds the memory of a pass, and keeps its activations in the CPU's cache


@dataclass(frozen=True, slots=True)
class Extension:
    """New tokens of one slot, from position `start`; the positions before it are cached already."""

    slot: int
    start: int
    token_ids: Sequence[int]


class SlottedDecoder:
    """Fused weights with their KV cache, (layers, 2, S, K, C, D). Unchecked: ids in the vocabulary,
    positions below `max_context_tokens`."""

    def __init__(self, weights: FusedWeights, *, num_slots: int, max_context_tokens: int) -> None:
        self._weights = weights
        self._max_context_tokens = max_context_tokens
        shape = (len(weights.layers), 2, num_slots, weights.num_kv_heads, max_context_tokens, weights.head_dim)
        self.cache = zeros(shape, dtype=weights.embedding.dtype, device=self.device)
        angles = torch.arange(max_context_tokens, device=self.device).float()[:, None] * weights.inv_freq
        self._rotations_C_D = torch.complex(angles.cos(), angles.sin()) * weights.rope_scale

    @property
    def device(self) -> torch.device:
        return self._weights.embedding.device

    @torch.inference_mode()
    def copy(self, source: int, target: int, num_tokens: int) -> None:
        self.cache[:, :, target, :, :num_tokens] = self.cache[:, :, source, :, :num_tokens]

    @torch.inference_mode()
    def read(self, extensions: Sequence[Extension]) -> None:
        """Cache keys and values of new tokens, packed by length; those of one slot in order."""
        batch: list[Extension] = []
        room = _MAX_PACKED_TOKENS
        for extension in sorted(extensions, key=lambda extension: len(extension.token_ids)):
            for offset in range(0, len(extension.token_ids), _MAX_PACKED_TOKENS):
                piece = extension.token_ids[offset : offset + _MAX_PACKED_TOKENS]
                if len(piece) > room:
                    self._read_packed(batch)
                    batch, room = [], _MAX_PACKED_TOKENS
                batch.append(Extension(extension.slot, extension.start + offset, piece))
                room -= len(piece)
        if batch:
            self._read_packed(batch)

    @torch.inference_mode()
    def write(self, token_N: NDArray[np.int64], length_N: NDArray[np.int64]) -> Tensor:
        """Logits (N, V) after one more token in each of the first N slots; `length_N` counts it."""
        weights = self._weights
        num_kv, dim = weights.num_kv_heads, weights.head_dim
        ranges = self._ranges(length_N)
        position_N = torch.from_numpy(length_N - 1).to(self.device)
        position_NK = position_N.repeat_interleave(num_kv)
        rows_NK = torch.arange(len(position_NK), device=self.device) * self._max_context_tokens + position_NK
        is_ahead_NK_C = torch.arange(max(span for _, span in ranges), device=self.device) > position_NK[:, None]
        mask_NK_1_C = torch.zeros_like(is_ahead_NK_C, dtype=weights.embedding.dtype).masked_fill_(
            is_ahead_NK_C, float("-inf")
        )[:, None]
        rotations = self._rotations_C_D[position_N, None]
        x = functional.embedding(torch.from_numpy(token_N).to(self.device), weights.embedding)
        for index, layer in enumerate(weights.layers):
            q, k, v = self._heads(layer, x, rotations)
            # Into the cache first: a token attends to itself as well.
            keys, values = self.cache[index].flatten(1, 2).unbind()  # (S K, C, D)
            keys.flatten(0, 1).index_copy_(0, rows_NK, k.flatten(0, 1))
            values.flatten(0, 1).index_copy_(0, rows_NK, v.flatten(0, 1))
            # Grouped-query attention: the H / K query heads of a KV head are rows of one product.
            queries = q.reshape(len(rows_NK), -1, dim)
            attended = torch.empty_like(queries)
            for rows, span in ranges:
                scores = torch.bmm(queries[rows], keys[rows, :span].transpose(1, 2)).add_(mask_NK_1_C[rows, :, :span])
                torch.bmm(
                    torch.softmax(scores, -1, dtype=torch.float32).to(v.dtype), values[rows, :span], out=attended[rows]
                )
            x = _finish_layer(layer, x, attended.view(len(x), -1))
        return _linear(functional.rms_norm(x, x.shape[-1:], eps=weights.final_eps), weights.head, weights.head_bias)

    def _ranges(self, length_N: NDArray[np.int64]) -> list[tuple[slice, int]]:
        """Ranges of (N K) rows with the positions that attention reads of each. On a GPU all slots
        are one: its cost is calls, not memory."""
        num_kv, size = self._weights.num_kv_heads, _RANGE if self.device.type == "cpu" else len(length_N)
        longest = np.maximum.reduceat(length_N, range(0, len(length_N), size)).tolist()
        spans = [min(-(-length // _SPAN_STEP) * _SPAN_STEP, self._max_context_tokens) for length in longest]
        return [
            (slice(index * size * num_kv, min((index + 1) * size, len(length_N)) * num_kv), span)
            for index, span in enumerate(spans)
        ]

    def _read_packed(self, batch: Sequence[Extension]) -> None:
        """Read new tokens of all requests in one pass; of the last layer keys and values alone."""
        weights, pack = self._weights, _Packing(batch, self.device)
        slots_K = pack.slot_P[:, None] * weights.num_kv_heads + torch.arange(weights.num_kv_heads, device=self.device)
        rows_PK = (slots_K * self._max_context_tokens + pack.position_P[:, None]).flatten()
        mask_R_1_T_C = pack.mask(weights.embedding.dtype)
        rotations = self._rotations_C_D[pack.position_P, None]
        x = functional.embedding(pack.token_P, weights.embedding)
        for index, layer in enumerate(weights.layers):
            q, k, v = self._heads(layer, x, rotations)
            keys, values = self.cache[index].unbind()  # (S, K, C, D)
            keys.flatten(0, 2).index_copy_(0, rows_PK, k.flatten(0, 1))
            values.flatten(0, 2).index_copy_(0, rows_PK, v.flatten(0, 1))
            if layer is weights.layers[-1]:
                return
            attended = functional.scaled_dot_product_attention(
                q[pack.padded_R_T].transpose(1, 2),
                keys[:, :, : pack.span][pack.slot_R],
                values[:, :, : pack.span][pack.slot_R],
                mask_R_1_T_C,
                scale=1.0,
                enable_gqa=True,
            )
            x = _finish_layer(layer, x, attended.transpose(1, 2).flatten(0, 1)[pack.unpadded_P].flatten(1))

    def _heads(self, layer: FusedLayer, x: Tensor, rotations: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q (·, H, D), k and v (·, K, D) of packed tokens, normalised and turned."""
        weights = self._weights
        normed = functional.rms_norm(x, x.shape[-1:], eps=layer.attention_eps)
        heads = _linear(normed, layer.qkv, layer.qkv_bias).view(len(x), -1, weights.head_dim)
        num_turned = weights.num_heads + weights.num_kv_heads
        qk, v = heads[:, :num_turned], heads[:, num_turned:]
        if layer.head_norm is not None:
            qk = functional.rms_norm(qk, qk.shape[-1:], eps=layer.head_eps) * layer.head_norm
        # The rotary embedding as one complex product: `fuse` placed the two halves side by side.
        pairs = torch.view_as_complex(qk.float().reshape(*qk.shape[:2], -1, 2))
        qk = torch.view_as_real(pairs * rotations).flatten(2).to(v.dtype)
        return qk[:, : weights.num_heads], qk[:, weights.num_heads :], v


def num_slots_within(free: int, weights: FusedWeights, max_context_tokens: int) -> int:
    """Number of slots, at least one, that fit into the cache's share of a GPU's free bytes."""
    numbers = 2 * len(weights.layers) * weights.num_kv_heads * weights.head_dim * max_context_tokens
    return max(free // _CACHE_SHARE // (numbers * weights.embedding.dtype.itemsize), 1)


def zeros(shape: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor of zeros for a cache: masked positions are still multiplied by 0, and 0 · NaN is
    NaN.

    On a CPU, pages never written take no memory, where torch.zeros writes to all. They are small
    pages: numpy's are of 2 MiB, which a token in every slot fills with zeros, a tenth of a training
    step.
    """
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    pages = mmap.mmap(-1, math.prod(shape) * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):  # Linux
        pages.madvise(mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(pages, dtype=dtype).view(shape)


class _Packing:
    """Indices of a batch of extensions: packed (P) in one row, and padded (R, T) for attention."""

    def __init__(self, batch: Sequence[Extension], device: torch.device) -> None:
        counts = [len(extension.token_ids) for extension in batch]
        count_R = torch.tensor(counts)
        start_R = torch.tensor([extension.start for extension in batch])
        slot_R = torch.tensor([extension.slot for extension in batch])
        first_R = count_R.cumsum(0) - count_R
        request_P = torch.arange(len(batch)).repeat_interleave(count_R, output_size=sum(counts))
        offset_P = torch.arange(sum(counts)) - first_R[request_P]
        width = max(_MIN_WIDTH, *counts)
        offset_T = torch.arange(width)
        self.token_P = torch.tensor([token for extension in batch for token in extension.token_ids], device=device)
        self.position_P = (start_R[request_P] + offset_P).to(device)
        self.slot_P = slot_R[request_P].to(device)
        self.slot_R = slot_R.to(device)
        # Padding repeats the request's last token.
        self.padded_R_T = (first_R[:, None] + offset_T.minimum(count_R[:, None] - 1)).to(device)
        self.unpadded_P = (request_P * width + offset_P).to(device)
        self.span = max(extension.start + count for extension, count in zip(batch, counts, strict=True))
        self._position_R_T = (start_R[:, None] + offset_T).to(device)

    def mask(self, dtype: torch.dtype) -> Tensor:
        """(R, 1, T, C): 0 where the key stands at or before the query, minus infinity elsewhere."""
        is_ahead = torch.arange(self.span, device=self.slot_R.device) > self._position_R_T[:, :, None]
        return torch.zeros_like(is_ahead, dtype=dtype).masked_fill_(is_ahead, float("-inf"))[:, None]


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """functional.linear with the same bits by one thread and by two: numbers of rows whose sums
    would be split between threads are padded."""
    if len(x) not in _SPLIT_ROWS:
        return functional.linear(x, weight, bias)
    return functional.linear(functional.pad(x, (0, 0, 0, -len(x) % _ROW_STEP)), weight, bias)[: len(x)]


def _finish_layer(layer: FusedLayer, x: Tensor, attended: Tensor) -> Tensor:
    x = x + _linear(attended, layer.out, layer.out_bias)
    normed = functional.rms_norm(x, x.shape[-1:], eps=layer.mlp_eps)
    gate, up = _linear(normed, layer.gate_up, layer.gate_up_bias).chunk(2, dim=-1)
    return x + _linear(layer.activation(gate) * up, layer.down, layer.down_bias)
