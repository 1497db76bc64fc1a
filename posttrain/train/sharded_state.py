"""Checkpoints of weights and optimizer state in shards, by torch.distributed.checkpoint: each
process writes what it has, and any number of them reads what it needs. A run of one process has
whole files, which a sharded run can go on from, too, and the other way round.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_model
from torch import Tensor, nn
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from posttrain.models import distributed, sharding
from posttrain.models.optimizers import OptimizerPair
from posttrain.train.checkpointing import diverged

WEIGHTS, GROUPS = "weights.", "groups"
INDEX = ".metadata"  # torch's file, in a checkpoint of shards


def is_sharded_state(checkpoint: Path) -> bool:
    return (checkpoint / INDEX).exists()


def save_shards(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write weights and optimizer state into `folder`; all processes must call it. Raises
    StoppedByAlarm where a weight is not finite."""
    weights = sharding.named_weights(model)
    own = [name for name, weight in weights.items() if not sharding.own_part(weight).isfinite().all()]
    if broken := sorted({name for of_process in distributed.gather(own) for name in of_process}):
        raise diverged(broken, folder)
    state: dict[str, Any] = {f"{WEIGHTS}{name}": weight for name, weight in weights.items()}
    for number, part in enumerate(_parts(optimizer)):
        saved = part.state_dict()
        state |= {
            f"{number}.{index}.{name}": value for index, own in saved["state"].items() for name, value in own.items()
        }
        state[f"{GROUPS}.{number}"] = saved["param_groups"]
    dcp.save(state, checkpoint_id=folder, process_group=distributed.group(), no_dist=distributed.count() == 1)


def load_shards(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
    """Load what `save_shards` wrote into a model, sharded or not, and the optimizer of its weights;
    without one the weights alone."""
    saved = FileSystemReader(folder).read_metadata().state_dict_metadata
    state: dict[str, Any] = {f"{WEIGHTS}{name}": weight for name, weight in sharding.named_weights(model).items()}
    parts = [] if optimizer is None else _parts(optimizer)
    for number, part in enumerate(parts):
        state |= _room(saved, number, part) | {f"{GROUPS}.{number}": None}
    with torch.no_grad():
        dcp.load(state, checkpoint_id=folder, process_group=distributed.group(), no_dist=distributed.count() == 1)
    for number, part in enumerate(parts):
        own: dict[int, dict[str, Any]] = {}
        for key in _keys(saved, number):
            _, index, name = key.split(".", 2)
            own.setdefault(int(index), {})[name] = state[key]
        part.load_state_dict({"state": own, "param_groups": state[f"{GROUPS}.{number}"]})


def load_weights(model: nn.Module, file: Path) -> None:
    """Load a safetensors file of all weights, each process its shards."""
    if distributed.is_sharded():
        sharding.read_weights_in_turn(model, file)
    else:
        load_model(model, str(file))


def load_optimizer_file(optimizer: torch.optim.Optimizer, file: Path) -> None:
    """Load the whole state of an optimizer, each process keeping its shards."""
    state = torch.load(file, weights_only=True, mmap=distributed.is_sharded())
    if not distributed.is_sharded():
        optimizer.load_state_dict(state)
        return
    parts = _parts(optimizer)
    for part, of_part in zip(parts, state["parts"] if isinstance(optimizer, OptimizerPair) else [state], strict=True):
        weights = _weights(part)
        own = {
            index: {name: _sharded_like(value, weights[index]) for name, value in values.items()}
            for index, values in of_part["state"].items()
        }
        part.load_state_dict({**of_part, "state": own})


def _parts(optimizer: torch.optim.Optimizer) -> list[torch.optim.Optimizer]:
    return list(optimizer.parts) if isinstance(optimizer, OptimizerPair) else [optimizer]


def _weights(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [weight for group in optimizer.param_groups for weight in group["params"]]


def _keys(saved: Mapping[str, Any], number: int) -> list[str]:
    return [key for key in saved if key.startswith(f"{number}.")]


def _room(saved: Mapping[str, Any], number: int, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Tensors for the state of an optimizer that may not have made a step yet."""
    weights, found = _weights(optimizer), dict[str, Tensor]()
    for key in _keys(saved, number):
        one, weight = saved[key], weights[int(key.split(".")[1])]
        assert isinstance(one, TensorStorageMetadata)
        how = {"dtype": one.properties.dtype}
        # averages have the weight's shape and are sharded like it; step counts and the like are not
        is_like = one.size == weight.shape
        found[key] = torch.empty_like(weight.detach(), **how) if is_like else torch.empty(one.size, **how)
    return found


def _sharded_like(value: Any, weight: Tensor) -> Any:
    is_like = isinstance(value, Tensor) and value.shape == weight.shape
    return sharding.like(value, weight) if is_like else value
