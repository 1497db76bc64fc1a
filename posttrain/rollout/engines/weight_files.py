"""Writes the weights of a model in training for servers to read.

A tied output matrix is written as a matrix of its own (`tie_word_embeddings: false`): vLLM on a CPU
keeps a packed copy of the head, which a reload renews only where the file has the head.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from posttrain.models import distributed
from posttrain.models.adapters import is_adapted
from posttrain.models.precision import compute_dtype
from posttrain.models.sharding import whole, write_weights_in_turn


def write_weights(model: Any, folder: Path) -> Path:
    """Write the LoRA adapter alone or, without one, all weights; returns the absolute folder. Of a
    sharded model all processes must call it; the first writes one weight after another."""
    target = folder.resolve()
    if distributed.is_first():
        target.mkdir(parents=True)
    if is_adapted(model):
        adapters = {name: whole(one.detach()).cpu() for name, one in model.state_dict().items() if "lora_" in name}
        if distributed.is_first():
            # with embedding layers, peft would look for the model's hub page each time
            model.save_pretrained(target, state_dict=adapters, safe_serialization=True, save_embedding_layers=False)
    elif distributed.is_sharded():
        write_weights_in_turn(model.state_dict(), target / "model.safetensors", dtype=compute_dtype(model))
    else:
        save_file(full_weights(model), target / "model.safetensors", metadata={"format": "pt"})
    return target


def listed_weights(model: Any) -> list[tuple[str, torch.dtype, list[int]]]:
    """Name, type and shape of each weight as servers get it, sharded or not."""
    return [(name, compute_dtype(model), list(one.shape)) for name, one in model.state_dict().items()]


@torch.no_grad()
def weights_in_turn(model: Any) -> Iterator[torch.Tensor]:
    """The weights that are listed, one whole weight after another; of a sharded model all processes
    must go through them."""
    for weight in model.state_dict().values():
        yield whole(weight.detach()).to(compute_dtype(model)).contiguous()


def full_weights(model: Any) -> dict[str, torch.Tensor]:
    """All weights by their names in the file, the output matrix too, in the compute type."""
    dtype = compute_dtype(model)
    weights = {name: tensor.detach().to("cpu", dtype).contiguous() for name, tensor in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        weights["lm_head.weight"] = model.get_output_embeddings().weight.detach().to("cpu", dtype, copy=True)
    return weights


def write_served_folder(source: Path, model: Any, target: Path) -> None:
    """Write a model's folder as a server reads it at its start, the head written out."""
    ignored = shutil.ignore_patterns("*.safetensors", "*.safetensors.index.json")
    shutil.copytree(source, target, ignore=ignored, copy_function=shutil.copyfile, dirs_exist_ok=True)
    target.chmod(target.stat().st_mode | 0o200)  # a stage's inputs are read-only
    config = json.loads((source / "config.json").read_text(encoding="utf-8")) | {"tie_word_embeddings": False}
    (target / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    save_file(full_weights(model), target / "model.safetensors", metadata={"format": "pt"})
