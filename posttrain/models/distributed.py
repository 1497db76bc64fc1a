"""Data parallelism: device and rank of this process, equal shares of every step, collectives for
Python values.

`accelerate launch` sets the rank in the environment; without it there is one process of rank 0.
Gradients take the backend that accelerate chose; everything else a gloo group of its own.
"""

import os
from collections.abc import Sequence
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from posttrain.models.cpu_kernels import use_cpu_kernels
from posttrain.models.micro_batches import NO_LIMIT, AtOnce
from posttrain.runtime.exits import ConfigurationError

T = TypeVar("T")

# Micro-batches of a process's share of a step. More of them sort rows by length with less padding;
# fewer of them have larger matrix products.
NUM_PARTS = 4
# Ranks wait this long while rank 0 evaluates alone or writes a large model. The death of a process
# is noticed by its closed connection and by accelerate, not by this timeout.
_TIMEOUT = timedelta(hours=4)


def is_launched() -> bool:
    return "LOCAL_RANK" in os.environ


def is_sharded() -> bool:
    """True if accelerate will shard the model (FSDP)."""
    return is_launched() and os.environ.get("ACCELERATE_USE_FSDP", "false") == "true"


def is_deepspeed() -> bool:
    """True if accelerate will hand the optimizer to DeepSpeed."""
    return os.environ.get("ACCELERATE_USE_DEEPSPEED", "false") == "true"


def device() -> torch.device:
    if not torch.cuda.is_available() or os.environ.get("ACCELERATE_USE_CPU", "false") == "true":
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))


def to_device(model: Any) -> Any:
    """The model on `device()`, with fast kernels on a CPU."""
    home = device()
    return use_cpu_kernels(model.to(home)) if home.type == "cpu" else model.to(home)


def count() -> int:
    """World size."""
    return int(os.environ["WORLD_SIZE"]) if is_launched() else 1


def index() -> int:
    """Rank; 0 writes what is written once."""
    return int(os.environ["RANK"]) if is_launched() else 0


def is_first() -> bool:
    return index() == 0


def parts_of(batch_size: int, knob: str, at_once: AtOnce = NO_LIMIT) -> tuple[int, int]:
    """Number and size of the micro-batches of a process's share: 32 rows on 2 processes are 4 of
    4 rows, with at most 3 rows `at_once` 8 of 2. With a limit in tokens 1 of 16, which the step
    cuts by length."""
    refuse_unequal_shares(batch_size, knob)
    share = batch_size // count()
    if at_once.tokens is not None:
        return 1, share
    if at_once.rows is not None:
        rows = next(rows for rows in range(min(at_once.rows, share), 0, -1) if share % rows == 0)
        return share // rows, rows
    num_parts = NUM_PARTS if share % NUM_PARTS == 0 else 1
    return num_parts, share // num_parts


def refuse_unequal_shares(batch_size: int, knob: str) -> None:
    if batch_size % count():
        raise ConfigurationError(
            f"{knob} is {batch_size}, which {count()} processes cannot share equally; "
            "a step is the same for any number of them, so take a number of "
            "processes that divides it (POSTTRAIN_PROCESSES, or the gpus that infra/dispatch.yaml reserves) or "
            f"change {knob}"
        )


def share_rows(rows: Sequence[T]) -> Sequence[T]:
    """This process's share of consecutive `rows`, one fewer where they do not divide: of 0..6, rank
    0 of 2 has 0..2 and rank 1 3..6."""
    return rows[len(rows) * index() // count() : len(rows) * (index() + 1) // count()]


def gather(value: T) -> list[T]:
    """All-gather: values by rank."""
    if count() == 1:
        return [value]
    values: list[Any] = [None] * count()
    dist.all_gather_object(values, value, group=group())
    return values


def from_first(value: T) -> T:
    """Broadcast the value of rank 0."""
    if count() == 1:
        return value
    values = [value]
    dist.broadcast_object_list(values, src=0, group=group())
    return values[0]


def add_up(tensors: Sequence[torch.Tensor]) -> None:
    """All-reduce each tensor to the sum over processes, in the gradients' group."""
    if count() > 1:
        for tensor in tensors:
            dist.all_reduce(tensor)


def wait_for_all() -> None:
    """Barrier."""
    gather(None)


def refuse_another_count(num_processes: int) -> None:
    if is_launched() and num_processes != count():
        raise ConfigurationError(
            f"accelerate trains with {num_processes} of {count()} processes, so each would train by itself; "
            "take a file of infra/accelerate/"
        )


def join() -> None:
    """Initialise the process groups before a trainer does. accelerate has no FSDP for CPUs and
    would silently do without, but PyTorch's FSDP runs on gloo: so accelerate is told of GPUs
    whose device is "cpu"."""
    if not is_launched() or dist.is_initialized():
        return
    from accelerate.state import PartialState
    from accelerate.utils import DistributedType

    is_cpu = not torch.cuda.is_available()
    if is_cpu and is_sharded() and os.environ.get("FSDP_OFFLOAD_PARAMS", "false") == "true":
        raise ConfigurationError(
            "FSDP is to offload its shards to the CPU, and this machine has no GPU to compute on; "
            "take infra/accelerate/fsdp.yaml"
        )
    if is_cpu and is_sharded():
        os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"
        # accelerate has no public way to say so
        PartialState._prepare_backend = lambda *_, **__: ("gloo", DistributedType.MULTI_GPU)
    elif is_cpu:
        os.environ["ACCELERATE_USE_CPU"] = "true"
    PartialState(cpu=is_cpu and not is_sharded(), timeout=_TIMEOUT)
    group()


def group() -> Any:
    """The gloo group of all processes, for Python values; None where there is one process."""
    return _group() if dist.is_initialized() else None


@cache
def _group() -> Any:
    return dist.new_group(backend="gloo", timeout=_TIMEOUT)
