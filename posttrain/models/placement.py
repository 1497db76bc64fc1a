"""Says where a model lives: the one place that every stage asks."""

import os
from typing import Any

import torch

from posttrain.models.cpu_kernels import use_cpu_kernels


def device() -> torch.device:
    """The GPU where there is one, of several processes each its own, else the CPU. It is where
    accelerate moves what a trainer gets, so `CUDA_VISIBLE_DEVICES` says for both which are seen,
    and `ACCELERATE_USE_CPU` that none is."""
    if not torch.cuda.is_available() or os.environ.get("ACCELERATE_USE_CPU", "false") == "true":
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))


def placed(model: Any) -> Any:
    """The model, where it lives; on a CPU it computes with the kernels that are fast there."""
    home = device()
    return use_cpu_kernels(model.to(home)) if home.type == "cpu" else model.to(home)
