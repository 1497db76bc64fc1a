"""Shards a model by FSDP, so that no process but the first ever holds all of it, and that one only
while it reads or makes it; writes and copies what is sharded one weight at a time.

A sharded model takes part in every training, forward pass and file as it is: there is no whole
twin. All processes must call what reads its weights.
"""

import copy
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from posttrain.models import distributed
from posttrain.models.params import LoraAdapter, OptimizerKind, PretrainedModel, Quantization, ScratchModel
from posttrain.runtime.exits import ConfigurationError

_TYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}  # as safetensors names them
# the structure of each sharded model, of which copies are made: FSDP's own cannot be copied
_skeletons: WeakKeyDictionary[nn.Module, nn.Module] = WeakKeyDictionary()


def loaded_once(load: Callable[[], Any]) -> Any:
    """What `load` returns; under FSDP in the first process alone, and in the others its structure
    without weights, to which `sharded` sends their shards."""
    if not distributed.is_sharded():
        return load()
    distributed.join()
    model = load() if distributed.is_first() else None
    structure = distributed.from_first(None if model is None else _without_weights(model))
    return structure if model is None else model


def sharded(model: Any) -> Any:
    """The model itself; under FSDP it has become this process's shard of the first process's."""
    if distributed.is_sharded() and not isinstance(model, FSDPModule):
        distributed.join()
        _skeletons[model] = _without_weights(model)
        _shard(model, is_sent=True)
    named_weights(model)
    return model


def named_weights(model: nn.Module) -> dict[str, Tensor]:
    """Each weight once by its name; a shard where the model is sharded, also after a forward pass,
    which leaves the last ones gathered."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
    return dict(model.named_parameters())


def sharded_copy(model: Any, change: Callable[[Any], Any] = lambda structure: structure) -> Any:
    """A copy of a sharded model, sharded alike, without any exchange. `change` gets the copy before
    it has weights, and returns the part of it to take or other types of weights."""
    whole = copy.deepcopy(_skeletons[model])
    copied = change(whole)
    names = {id(weight): name for name, weight in whole.named_parameters()}
    weights = named_weights(model)
    own = {
        name: weights[names[id(weight)]].detach().to(weight.dtype, copy=True)
        for name, weight in copied.named_parameters()
    }
    _shard(copied, is_sent=False)
    copied.load_state_dict(own, strict=False, assign=True)
    getattr(copied, "tie_weights", lambda: None)()
    return copied


def sharded_layer(layer: nn.Module) -> nn.Module:
    """A layer that all processes have alike, sharded under FSDP."""
    if distributed.is_sharded():
        fully_shard(layer)
        if next(layer.parameters()).device.type == "cpu":
            sum_without_average(layer)
    return layer


def refuse_optimizer(optimizer: OptimizerKind) -> None:
    """Raise ConfigurationError for an optimizer that cannot work on shards."""
    if optimizer == "adamw_8bit" and distributed.is_sharded():
        raise ConfigurationError("optimizer is adamw_8bit, and FSDP shards what it keeps: take adamw")
    if optimizer == "muon" and distributed.is_deepspeed():
        raise ConfigurationError(
            "optimizer is muon, and DeepSpeed cuts matrices into flat pieces; take adamw, or infra/accelerate/fsdp.yaml"
        )


def place_for_training(model: Any) -> Any:
    return model if distributed.is_sharded() else distributed.to_device(model)


def quantization_of(params: ScratchModel | PretrainedModel) -> Quantization:
    """Quantization beneath adapters. Raises ConfigurationError under FSDP: a shard has no
    scales."""
    kind = params.adapter.quantization if isinstance(params.adapter, LoraAdapter) else "none"
    if kind != "none" and distributed.is_sharded():
        raise ConfigurationError(
            f"model.adapter.quantization is {kind}, and FSDP would cut quantised matrices: take none, or processes "
            "that each have the whole model (infra/accelerate/ddp.yaml)"
        )
    return kind


@contextmanager
def weights_kept(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Context in which accelerate prepares a sharded model and its optimizer. It finds weights
    again by their addresses, and all shards without a row have one address; and it would look for
    layers to shard by their classes, which have other names in shards."""
    from accelerate.state import AcceleratorState

    named_weights(model)
    before = [list(group["params"]) for group in optimizer.param_groups]
    plugin = AcceleratorState().fsdp_plugin
    policy, plugin.auto_wrap_policy = plugin.auto_wrap_policy, None
    yield
    plugin.auto_wrap_policy = policy
    for group, weights in zip(optimizer.param_groups, before, strict=True):
        group["params"] = weights


def sum_without_average(model: nn.Module) -> None:
    """Make FSDP add gradients and then divide: gloo has no averaging reduction."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)


def whole(weight: Tensor) -> Tensor:
    """All of a weight, sharded or not; of a sharded one all processes must ask."""
    return weight.full_tensor() if isinstance(weight, DTensor) else weight


def own_part(weight: Tensor) -> Tensor:
    """The part of a weight that this process has."""
    return weight.to_local() if isinstance(weight, DTensor) else weight


def like(weight: Tensor, target: Tensor) -> Tensor:
    """`weight` sharded like `target`; every process has all of it, so nothing is sent."""
    if not isinstance(target, DTensor):
        return weight
    return distribute_tensor(weight.to(target.device), target.device_mesh, target.placements, src_data_rank=None)


@torch.no_grad()
def write_weights_in_turn(weights: Mapping[str, Tensor], file: Path, *, dtype: torch.dtype | None = None) -> None:
    """Write a safetensors file of `weights`, as `dtype` or their own: the first process gets one of
    them after another whole, and writes it. Two names of one tensor are written twice."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    weights = dict(sorted(weights.items(), key=lambda one: -one[1].itemsize))  # each is read at a multiple of its size
    end = 0
    for name, weight in weights.items():
        kind = dtype or weight.dtype
        start, end = end, end + weight.numel() * kind.itemsize
        header[name] = {"dtype": _TYPES[kind], "shape": list(weight.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of eight bytes
    with file.open("wb") if distributed.is_first() else open(os.devnull, "wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for weight in weights.values():
            one = whole(weight.detach())
            if distributed.is_first():
                flat = one.to("cpu", dtype or one.dtype).contiguous().flatten()
                out.write(flat.view(torch.uint8).numpy().data)


@torch.no_grad()
def read_weights_in_turn(model: nn.Module, file: Path) -> None:
    """Load a whole file into `model`, each process its shards, one weight after another."""
    targets = model.state_dict()
    # PEFT's files have short names of adapters and heads
    targets |= {re.sub(r"(\.modules_to_save)?\.default\b", "", name): weight for name, weight in targets.items()}
    with safe_open(file, framework="pt") as weights:
        for name in weights.keys():  # noqa: SIM118 — no dictionary
            targets[name].copy_(like(weights.get_tensor(name), targets[name]))


def _shard(model: Any, *, is_sent: bool) -> None:
    """Make a model shards in place, without weights or with those that the first process sends."""
    from accelerate import Accelerator  # takes a second, and most who load a model do without
    from accelerate.utils.fsdp_utils import fsdp2_prepare_model

    accelerator = Accelerator()
    # in the file of accelerate it would have transformers leave all other models without weights
    accelerator.state.fsdp_plugin.cpu_ram_efficient_loading = is_sent
    fsdp2_prepare_model(accelerator, model)
    accelerator.state.fsdp_plugin.cpu_ram_efficient_loading = False
    if accelerator.device.type == "cpu":
        sum_without_average(model)


def _without_weights(model: Any) -> Any:
    """A copy on the meta device, with the buffers that no file has."""
    memo = {
        id(weight): nn.Parameter(torch.empty_like(weight, device="meta"), requires_grad=weight.requires_grad)
        for weight in model.parameters()
    }
    return copy.deepcopy(model, memo)
