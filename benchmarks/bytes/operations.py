"""Digests of single operations, so that a difference between two processors has a name.

Inputs are whole numbers divided once, which IEEE 754 rounds in one way: they cannot differ, so an
output that does was computed in another order or by another formula. The sizes are those of the
default model.
"""

import hashlib
import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from posttrain.models.optimizers import build_optimizer

NUM_DIGITS = 12


def digest(arrays: Iterable[Any]) -> str:
    """The first hex digits of the SHA-256 of tensors or arrays, one after another."""
    hashed = hashlib.sha256()
    for array in arrays:
        values = array.detach().contiguous().numpy() if isinstance(array, Tensor) else np.ascontiguousarray(array)
        hashed.update(values.tobytes())
    return hashed.hexdigest()[:NUM_DIGITS]


def digest_operations() -> dict[str, str]:
    return {name: digest(compute()) for name, compute in _operations().items()}


def _operations() -> dict[str, Callable[[], Iterable[Any]]]:
    hidden, wide, vocabulary = _drawn(1, 90, 96), _drawn(2, 256, 96), _drawn(3, 900, 96)
    rows = _drawn(4, 64, 300)
    positive, array, flat = rows.abs() + 2.0**-10, rows.numpy(), _drawn(5, 50_000)
    heads = [_drawn(seed, 2, 4, 40, 64) for seed in (6, 7, 8)]
    return {
        "matrix product": lambda: (hidden @ wide.T, functional.linear(hidden, vocabulary), hidden.T @ hidden),
        "product of few rows": lambda: (functional.linear(hidden[:count], vocabulary) for count in (1, 2, 3, 8)),
        "batched product": lambda: (heads[0] @ heads[1].transpose(-1, -2),),
        "attention": lambda: (functional.scaled_dot_product_attention(*heads, is_causal=True),),
        "dot product": lambda: (flat.dot(flat), vocabulary @ hidden[0]),
        "sum, mean, norm": lambda: (rows.sum(), rows.mean(-1), rows.norm(), torch.linalg.vector_norm(rows, dim=1)),
        "exp": lambda: (rows.exp(),),
        "log": lambda: (positive.log(),),
        "softmax, log_softmax": lambda: (rows.softmax(-1), rows.log_softmax(-1), rows.logsumexp(-1)),
        "silu, sigmoid, tanh": lambda: (functional.silu(rows), rows.sigmoid(), rows.tanh()),
        "gelu": lambda: (functional.gelu(rows),),
        "sin, cos, pow": lambda: ((rows * 100).sin(), (rows * 100).cos(), positive.pow(0.3)),
        "sqrt, rsqrt": lambda: (positive.sqrt(), positive.rsqrt()),
        "layer norm, RMS norm": lambda: (
            functional.layer_norm(rows, (300,)),
            functional.rms_norm(rows, (300,)),
        ),
        "draws": lambda: _draws(rows),
        "AdamW step": lambda: _step("adamw"),
        "Muon step": lambda: _step("muon"),
        "numpy product": lambda: (array[:, :96] @ wide.numpy().T, array @ array[0], np.linalg.norm(array)),
        "numpy exp, log, sin": lambda: [f(positive.numpy().astype(t)) for f in (np.exp, np.log, np.sin) for t in "fd"],
        "numpy sum, mean, std": lambda: (array.sum(), array.mean(1), array.std(0), array.astype(float).sum(1)),
        "math": lambda: [_by_math(f, positive) for f in (math.exp, math.log, math.tanh, math.sin, math.sqrt)],
    }


def _by_math(function: Callable[[float], float], values: Tensor) -> Any:
    return np.array([function(value) for value in values.flatten().tolist()[:500]])


def _drawn(seed: int, *shape: int) -> Tensor:
    """Multiples of 2^-14 between -2 and 2 divided by 3, so that sums of them are rounded; from the
    high bits of a linear congruential generator."""
    count = math.prod(shape)
    states, state = np.empty(count, dtype=np.int64), seed
    for place in range(count):
        state = (state * 1_103_515_245 + 12_345) % 2**31
        states[place] = state
    thirds = ((states >> 15) - 2**15).astype(np.float32) / np.float32(3 * 2**14)
    return torch.from_numpy(thirds).reshape(shape)


def _draws(rows: Tensor) -> Iterable[Tensor]:
    generator = torch.Generator().manual_seed(1)
    normal = torch.empty(1000).normal_(generator=generator)
    return normal, torch.randn(7, generator=generator), torch.multinomial(rows.abs(), 3, generator=generator)


def _step(kind: Any) -> Iterable[Tensor]:
    """Three steps of a linear layer (96 to 256) and its bias along a gradient."""
    layer = nn.Linear(96, 256)
    with torch.no_grad():
        layer.weight.copy_(_drawn(9, 256, 96) / 16)
        layer.bias.zero_()
    optimizer = build_optimizer(layer, kind, 1e-2)
    for seed in range(10, 13):
        layer.weight.grad, layer.bias.grad = _drawn(seed, 256, 96), _drawn(seed, 256)
        optimizer.step()
    return layer.parameters()
