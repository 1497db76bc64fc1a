"""Estimates what one of several processes holds: the stage's code runs as that process would, in a
group of PyTorch's that exchanges nothing, so that FSDP cuts and gathers tensors without numbers."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import PretrainedConfig

from posttrain.config.params import Params
from posttrain.memory_estimate.model import shapes_of
from posttrain.models import distributed, sharding
from posttrain.runtime.exits import ConfigurationError
from posttrain.runtime.plain_yaml import read_yaml

LAUNCHED = ("train_sft", "train_reward_model", "train_policy")  # the stages that several processes share


@dataclass(frozen=True, slots=True)
class Processes:
    """`count` of them, each with a GPU; `is_sharded`: by FSDP, else each has the whole model
    (DDP). With `servers` vLLM servers play, and no engine is in the processes; without, the
    environment says who plays."""

    count: int = 1
    is_sharded: bool = False
    servers: int = 0

    @classmethod
    def of(cls, launch: Path | None, *, count: int, servers: int) -> "Processes":
        """By a file of infra/accelerate. Raises ConfigurationError where what it asks for cannot
        be estimated."""
        if count == 1 or launch is None:
            return cls(count, servers=servers)
        content = read_yaml(launch)
        kind = content.get("distributed_type")
        if kind not in ("MULTI_GPU", "FSDP") or content.get("fsdp_config", {}).get("fsdp_offload_params"):
            raise ConfigurationError(
                f"{launch} offloads or is of {kind}, and only DDP and FSDP on the GPU are estimated: name "
                "infra/accelerate/ddp.yaml or fsdp.yaml"
            )
        return cls(count, kind == "FSDP", servers)


ALONE = Processes()


@contextmanager
def among(processes: Processes) -> Iterator[None]:
    """Context in which code finds itself in the first of these processes."""
    engine = {"POSTTRAIN_ENGINE": "vllm"} if processes.servers else {}
    if processes.count == 1:
        with mock.patch.dict(os.environ, engine):
            yield
        return
    from torch.testing._internal.distributed.fake_pg import FakeStore  # the one home of the backend "fake"

    ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(processes.count)}
    ranks["ACCELERATE_USE_FSDP"] = str(processes.is_sharded).lower()
    excepthook = sys.excepthook  # which PyTorch replaces by one that names ranks
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=processes.count)
    try:
        on_all = partial(fully_shard, mesh=init_device_mesh("cpu", (processes.count,)))
        with (
            mock.patch.dict(os.environ, engine | ranks),
            mock.patch.object(sharding, "fully_shard", on_all),
            mock.patch.object(sharding, "_shard", partial(_shard, cut=on_all)),
        ):
            yield
    finally:
        dist.destroy_process_group()
        sys.excepthook = excepthook


def _shard(model: Any, *, cut: Callable[[Any], object], **_: bool) -> None:
    """As accelerate does by TRANSFORMER_BASED_WRAP, without its state."""
    for module in model.modules():
        if type(module).__name__ in (model._no_split_modules or ()):
            cut(module)
    cut(model)
    sharding.sum_without_average(model)


def buckets_of(weights: Sequence[Tensor]) -> list[Tensor]:
    """The gradients that DDP has in its buckets besides the weights' own."""
    is_ddp = distributed.count() > 1 and not distributed.is_sharded()
    return [torch.empty_like(weight) for weight in weights if weight.requires_grad] if is_ddp else []


def server_memory(params: Params, config: PretrainedConfig) -> tuple[int, int]:
    """Bytes of a vLLM server's weights, and of the keys and values of a token."""
    with torch.device("meta"):
        num_weights = sum(one.numel() for one in shapes_of(config, params.model.dtype).parameters())
    size = getattr(torch, params.model.dtype).itemsize
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return num_weights * size, 2 * config.num_hidden_layers * config.num_key_value_heads * head_dim * size
