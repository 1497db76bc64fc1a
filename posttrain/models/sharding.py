"""Copies weights and optimizer state between FSDP shards and a whole model, which stays for
engines and files. Checkpoints are whole, so a run can resume with any number of processes; the
price is one more copy of the weights in each."""

import copy
import os
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils._pytree import tree_map

from posttrain.models import distributed
from posttrain.models.optimizers import OptimizerPair
from posttrain.models.params import LoraAdapter, OptimizerKind, PretrainedModel, Quantization, ScratchModel
from posttrain.runtime.exits import ConfigurationError


def learner_of(model: Any, optimizer: OptimizerKind) -> Any:
    """The model for the trainer: a copy where FSDP will shard it. Raises ConfigurationError for
    an optimizer that cannot work on shards."""
    if optimizer == "adamw_8bit" and distributed.is_sharded():
        raise ConfigurationError("optimizer is adamw_8bit, and FSDP shards what it keeps: take adamw")
    if optimizer == "muon" and os.environ.get("ACCELERATE_USE_DEEPSPEED", "false") == "true":
        raise ConfigurationError(
            "optimizer is muon, and DeepSpeed cuts matrices into flat pieces; take adamw, or infra/accelerate/fsdp.yaml"
        )
    return copy.deepcopy(model) if distributed.is_sharded() else model


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


@torch.no_grad()
def gather_weights(learner: nn.Module, into: nn.Module) -> None:
    """Copy the sharded `learner` into its whole twin."""
    targets = into.state_dict()
    for name, weight in learner.state_dict().items():
        targets[name].copy_(_whole(weight))


@torch.no_grad()
def scatter_weights(whole: nn.Module, into: nn.Module) -> None:
    """Copy `whole` into its twin, sharded or not."""
    weights = whole.state_dict()
    for name, target in into.state_dict().items():
        target.copy_(_like(weights[name], target))


def whole_optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """`optimizer.state_dict()` with whole tensors on the CPU."""
    state: dict[str, Any] = tree_map(_whole_on_cpu, optimizer.state_dict())
    return state


def load_optimizer_state(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load what `whole_optimizer_state` returned, each process keeping its shards."""
    if isinstance(optimizer, OptimizerPair):
        parts = [_sharded_state(part, of_part) for part, of_part in zip(optimizer.parts, state["parts"], strict=True)]
        optimizer.load_state_dict({"parts": parts})
    else:
        optimizer.load_state_dict(_sharded_state(optimizer, state))


def sum_without_average(model: nn.Module) -> None:
    """Make FSDP add gradients and then divide: gloo has no averaging reduction."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)


def _sharded_state(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    # averages have the weight's shape and are sharded like it; step counts and the like are not
    own = {
        index: {
            name: _like(value, weights[index]) if _has_shape(value, weights[index]) else value
            for name, value in values.items()
        }
        for index, values in state["state"].items()
    }
    return {**state, "state": own}


def _has_shape(value: Any, weight: Tensor) -> bool:
    return isinstance(value, Tensor) and value.shape == weight.shape


def _whole(weight: Tensor) -> Tensor:
    return weight.full_tensor() if isinstance(weight, DTensor) else weight


def _whole_on_cpu(value: Any) -> Any:
    return _whole(value).cpu() if isinstance(value, Tensor) else value


def _like(weight: Tensor, target: Tensor) -> Tensor:
    """Sharded like `target`; every process has all of it, so nothing is sent."""
    if not isinstance(target, DTensor):
        return weight
    return distribute_tensor(weight.to(target.device), target.device_mesh, target.placements, src_data_rank=None)
