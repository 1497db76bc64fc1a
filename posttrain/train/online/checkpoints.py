"""Checkpoints of online training: whole weights, the whole optimizer state, and the trainer state
as JSON. A resumed run reaches the same bytes, with any number of processes."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_model, save_model
from torch import nn

from posttrain.models import distributed, sharding
from posttrain.train.checkpointing import PREFIX, prune, seal
from posttrain.train.resumable_trainer import METRICS, TrainingRun

WEIGHTS, OPTIMIZER, STATE = "model.safetensors", "optimizer.pt", "online.json"


def save(
    run: TrainingRun,
    step: int,
    *,
    whole: nn.Module,
    optimizer: torch.optim.Optimizer,
    state: Mapping[str, Any],
    also: Callable[[Path], None],
) -> None:
    """Write and seal a checkpoint after `step`; all processes must call it. `whole` has the weights
    as they are now; `also` writes more files into the folder."""
    # a collective: sharded optimizer states are gathered by all, and written by the first
    moments = sharding.whole_optimizer_state(optimizer)
    if run.metrics is None:
        distributed.wait_for_all()
        return
    folder = run.folder / f"{PREFIX}{step}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    save_model(whole, str(folder / WEIGHTS))
    torch.save(moments, folder / OPTIMIZER)
    (folder / STATE).write_text(json.dumps({"step": step, **state}, sort_keys=True), encoding="utf-8")
    also(folder)
    shutil.copyfile(run.metrics.path, folder / METRICS)
    seal(folder)
    prune(run.folder, keep=None)
    distributed.wait_for_all()


def load(
    checkpoint: Path, *, whole: nn.Module, optimizer: torch.optim.Optimizer, also: Callable[[Path], None]
) -> dict[str, Any]:
    """Load the weights into `whole`, the optimizer's state into each process's share of it, and
    what `also` reads. Returns what `save` was given as `state`, with its step."""
    also(checkpoint)
    load_model(whole, str(checkpoint / WEIGHTS))
    sharding.load_optimizer_state(optimizer, torch.load(checkpoint / OPTIMIZER, weights_only=True))
    state: dict[str, Any] = json.loads((checkpoint / STATE).read_text(encoding="utf-8"))
    return state
