"""Checkpoints of weights and optimizer state in shards, by torch.distributed.checkpoint: each
process writes what it has, and any number of them reads what it needs. A run of one process has
whole files, from which a sharded run goes on, too, and the other way round."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_model
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from posttrain.models import distributed, sharding
from posttrain.models.optimizers import OptimizerPair
from posttrain.train.checkpointing import diverged


def is_sharded_state(checkpoint: Path) -> bool:
    return (checkpoint / ".metadata").exists()  # torch's file


def save_shards(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write trained weights and optimizer state into `folder`; all processes must call it. Raises
    StoppedByAlarm where a weight is not finite."""
    weights = _trained(model)
    own = [name for name, weight in weights.items() if not sharding.own_part(weight).isfinite().all()]
    if broken := sorted({name for of_process in distributed.gather(own) for name in of_process}):
        raise diverged(broken, folder)
    state: dict[str, Any] = {f"weights.{name}": weight for name, weight in weights.items()}
    for number, part in enumerate(_parts(optimizer)):
        saved = part.state_dict()
        averages = (
            (f"{number}.{place}.{name}", one) for place, of in saved["state"].items() for name, one in of.items()
        )
        state |= dict(averages) | {f"groups.{number}": json.dumps(saved["param_groups"])}
    _exchanged(save, state, folder)


def load_shards(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
    """Load what `save_shards` wrote into a model, sharded or not, and the optimizer of its weights;
    without one the weights alone."""
    saved: Any = FileSystemReader(folder).read_metadata().state_dict_metadata
    state: dict[str, Any] = {f"weights.{name}": one.detach() for name, one in _trained(model).items()}
    parts = [] if optimizer is None else _parts(optimizer)
    states: list[dict[int, dict[str, Tensor]]] = [{} for _ in parts]
    for number, part in enumerate(parts):
        state[f"groups.{number}"] = ""
        weights = _weights(part)
        for key in (key for key in saved if key.startswith(f"{number}.")):
            _, place, name = key.split(".", 2)
            size, how = saved[key].size, {"dtype": saved[key].properties.dtype}
            # averages have the weight's shape and are sharded like it, other than step counts
            is_like = size == (weight := weights[int(place)].detach()).shape
            state[key] = torch.empty_like(weight, **how) if is_like else torch.empty(size, **how)
            states[number].setdefault(int(place), {})[name] = state[key]
    _exchanged(load, state, folder)
    if optimizer is not None:
        groups = (json.loads(state[f"groups.{number}"]) for number in range(len(parts)))
        _load(optimizer, [{"state": own, "param_groups": of} for own, of in zip(states, groups, strict=True)])


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
    states = state["parts"] if isinstance(optimizer, OptimizerPair) else [state]
    for part, of_part in zip(_parts(optimizer), states, strict=True):
        for place, weight in enumerate(_weights(part)):
            own = of_part["state"].get(place, {})
            own |= {name: sharding.like(one, weight) for name, one in own.items() if one.shape == weight.shape}
    _load(optimizer, states)


def _load(optimizer: torch.optim.Optimizer, states: list[dict[str, Any]]) -> None:
    # a pair's groups are those of its parts, which loading makes anew
    optimizer.load_state_dict({"parts": states} if isinstance(optimizer, OptimizerPair) else states[0])


def _trained(model: nn.Module) -> dict[str, Tensor]:
    return {name: weight for name, weight in sharding.named_weights(model).items() if weight.requires_grad}


def _parts(optimizer: torch.optim.Optimizer) -> list[torch.optim.Optimizer]:
    return list(optimizer.parts) if isinstance(optimizer, OptimizerPair) else [optimizer]


def _weights(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [weight for group in optimizer.param_groups for weight in group["params"]]


def _exchanged(exchange: Callable[..., Any], state: dict[str, Any], folder: Path) -> None:
    group, is_alone = distributed.group(), distributed.count() == 1
    try:
        exchange(state, checkpoint_id=folder, process_group=group, no_dist=is_alone)
    except CheckpointException as error:  # no Exception: the runner would take it for a kill
        raise RuntimeError(str(error)) from error
