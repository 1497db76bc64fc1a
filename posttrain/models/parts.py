"""Computes the parts of a step side by side, one thread each.

A small model's operations are too short to be shared out: on two idle cores OpenMP's two threads
took 102 s for a warm-up that one thread did in 62. Whole parts are long enough. Their gradients are
added in the order of the parts, so any number of threads makes the same bits. A larger model takes
one part after the other, each operation shared out, and holds one set of gradients.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

MAX_WEIGHTS = 10_000_000  # of a small model
_num_threads: ContextVar[int] = ContextVar("num_threads", default=1)
Part = TypeVar("Part")
Result = TypeVar("Result")


def is_small_on_cpu(model: Any) -> bool:
    """True where parts are computed side by side; not where several processes train, which
    exchange gradients within each backward pass."""
    weights = list(model.parameters())
    return (
        "LOCAL_RANK" not in os.environ
        and all(weight.is_cpu for weight in weights)
        and sum(weight.numel() for weight in weights) <= MAX_WEIGHTS
    )


@contextmanager
def parts_beside(model: Any) -> Iterator[None]:
    """Context for a small model: `in_threads` has as many threads as PyTorch had, every
    operation one, as OpenMP's others would spin between operations."""
    if not is_small_on_cpu(model):
        yield
        return
    num_threads = torch.get_num_threads()
    token = _num_threads.set(num_threads)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)
        _num_threads.reset(token)


def in_threads(compute: Callable[[Part], Result], parts: Sequence[Part]) -> Iterator[Result]:
    """`compute` of every part, in their order; in threads within `parts_beside`."""
    if _num_threads.get() == 1 or len(parts) < 2:
        yield from map(compute, parts)
        return
    with ThreadPoolExecutor(_num_threads.get(), "part", initializer=torch.set_num_threads, initargs=(1,)) as pool:
        yield from pool.map(compute, parts)


def exchanging(model: Any, *, is_last: bool) -> AbstractContextManager[None]:
    """Context of a part's passes: processes add up their gradients with the last one only. Under
    FSDP with each, as it would else keep the gradients of the whole model."""
    if is_last or not isinstance(model, DistributedDataParallel):
        return nullcontext()
    found: AbstractContextManager[None] = model.no_sync()
    return found


def add_gradients(
    model: Any,
    loss_of: Callable[[Part], tuple[Tensor, Result]],
    parts: Sequence[Part],
    *,
    backward: Callable[[Tensor], object] = Tensor.backward,
) -> list[Result]:
    """Add the gradients of every part's loss to those of the weights; returns what `loss_of`
    gives beside each loss. `backward` is called where parts come one after the other."""
    if not is_small_on_cpu(model):
        results = []
        for number, part in enumerate(parts, 1):
            with exchanging(model, is_last=number == len(parts)):
                loss, result = loss_of(part)
                backward(loss)
            results.append(result)
        return results
    weights = [weight for weight in model.parameters() if weight.requires_grad]

    def gradients(part: Part) -> tuple[tuple[Tensor | None, ...], Result]:
        loss, result = loss_of(part)
        return torch.autograd.grad(loss, weights, allow_unused=True), result

    results = []
    for found, result in in_threads(gradients, parts):
        for weight, gradient in zip(weights, found, strict=True):
            if gradient is not None:
                weight.grad = gradient if weight.grad is None else weight.grad.add_(gradient)
        results.append(result)
    return results
