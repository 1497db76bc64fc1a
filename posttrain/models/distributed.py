"""Lets several processes train as one. They take equal shares of every step and agree on what each
of them saw. One process is its own only one.

`accelerate launch` (posttrain/provenance/launcher.py) says in the environment which process this
is. What they tell each other besides gradients goes over a gloo channel of its own, whatever the
gradients take: it needs no GPU and does not wait for one.
"""

import os
from collections.abc import Sequence
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from posttrain.runtime.exits import ConfigurationError

T = TypeVar("T")

NUM_PARTS = 4  # of a process's share of a step, forward and backward one after the other, rows of one length together
# The others wait where the first plays alone or writes a large model. A death is noticed by the
# closed connection and by accelerate, not by this.
_TIMEOUT = timedelta(hours=4)


def is_launched() -> bool:
    """Whether this process was started as one of several; the several may be one."""
    return "LOCAL_RANK" in os.environ


def is_sharded() -> bool:
    """Whether accelerate will shard the model in training (FSDP)."""
    return is_launched() and os.environ.get("ACCELERATE_USE_FSDP", "false") == "true"


def count() -> int:
    return int(os.environ["WORLD_SIZE"]) if is_launched() else 1


def index() -> int:
    """0 for the first, which writes what is written once."""
    return int(os.environ["RANK"]) if is_launched() else 0


def is_first() -> bool:
    return index() == 0


def parts_of(batch_size: int, knob: str, at_once: int | None = None) -> tuple[int, int]:
    """Into how many equal parts a process cuts its share of a step's rows, and how many rows a part
    has: 32 rows for 2 processes are 4 parts of 4, with 3 `at_once` 8 of 2. Raises as
    `refuse_unequal_shares` does.
    """
    refuse_unequal_shares(batch_size, knob)
    share = batch_size // count()
    if at_once is not None:
        rows = next(rows for rows in range(min(at_once, share), 0, -1) if share % rows == 0)
        return share // rows, rows
    num_parts = NUM_PARTS if share % NUM_PARTS == 0 else 1
    return num_parts, share // num_parts


def pair_parts(batch_size: int, knob: str, at_once: int | None = None) -> tuple[int, int]:
    """The same of pairs, of two rows each."""
    return parts_of(batch_size, knob, None if at_once is None else max(at_once // 2, 1))


def refuse_unequal_shares(batch_size: int, knob: str) -> None:
    """Raises ConfigurationError where the rows or episodes of a step cannot be shared out."""
    if batch_size % count():
        raise ConfigurationError(
            f"{knob} is {batch_size}, which {count()} processes cannot share equally; "
            "a step is the same for any number of them, so take a number of "
            "processes that divides it (POSTTRAIN_PROCESSES, or the gpus that infra/dispatch.yaml reserves) or "
            f"change {knob}"
        )


def share_of(count_all: int) -> slice:
    """This process's of `count_all` things in a row, a number that the processes divide: of 8 the
    second of two has 4..7."""
    size = count_all // count()
    return slice(index() * size, (index() + 1) * size)


def share_rows(rows: Sequence[T]) -> Sequence[T]:
    """This process's of `rows`."""
    return rows[share_of(len(rows))]


def gather(value: T) -> list[T]:
    """What each of them gives, the first's first; all of them must call it."""
    if count() == 1:
        return [value]
    values: list[Any] = [None] * count()
    dist.all_gather_object(values, value, group=_channel())
    return values


def from_first(value: T) -> T:
    """What the first gives; all of them must call it."""
    if count() == 1:
        return value
    values = [value]
    dist.broadcast_object_list(values, src=0, group=_channel())
    return values[0]


def add_up(tensors: Sequence[torch.Tensor]) -> None:
    """Each becomes the sum of what the processes have there, over the channel of the gradients; all
    of them must call it, with as many of the same shapes."""
    if count() > 1:
        for tensor in tensors:
            dist.all_reduce(tensor)


def wait_for_all() -> None:
    """Return when every process is here."""
    gather(None)


def refuse_another_count(num_processes: int) -> None:
    """What accelerate made of it. Raises ConfigurationError: processes that do not know of each
    other would each train by themselves."""
    if is_launched() and num_processes != count():
        raise ConfigurationError(
            f"accelerate trains with {num_processes} of {count()} processes; take a file of infra/accelerate/"
        )


def join() -> None:
    """Meet the others, before a trainer does; nothing for a process that was not launched.

    Where there is no GPU accelerate has to be told so. It knows no FSDP then and would do without,
    in silence; PyTorch's runs on gloo, so it is told of GPUs that are called cpu. Raises
    ConfigurationError where shards are to be kept in the host's memory and there is nothing else.
    """
    if not is_launched() or dist.is_initialized():
        return
    from accelerate.state import PartialState
    from accelerate.utils import DistributedType

    is_cpu = not torch.cuda.is_available()
    if is_cpu and is_sharded() and os.environ.get("FSDP_OFFLOAD_PARAMS", "false") == "true":
        raise ConfigurationError(
            "the shards are to lie in the host's memory between uses, and this machine has no GPU; "
            "take infra/accelerate/fsdp.yaml"
        )
    if is_cpu and is_sharded():
        os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"
        PartialState._prepare_backend = lambda *_, **__: ("gloo", DistributedType.MULTI_GPU)
    elif is_cpu:
        os.environ["ACCELERATE_USE_CPU"] = "true"
    PartialState(cpu=is_cpu and not is_sharded(), timeout=_TIMEOUT)
    _channel()


@cache
def _channel() -> Any:
    return dist.new_group(backend="gloo", timeout=_TIMEOUT)
