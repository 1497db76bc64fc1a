"""One process below `accelerate launch` with each file of `infra/accelerate`: it learns what the
process alone learns. On a GPU that is NCCL, and the files that need one."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.arms import REPOSITORY
from benchmarks.gpu.ground import Ground, encoded
from posttrain.models.loading import load_codec
from posttrain.train.trainable import load_trainable

CONFIGS = ("ddp", "fsdp", "fsdp_offload", "zero2")
NUM_STEPS, LIMIT_S = 4, 45
LOSSES = "LOSSES "


def find(ground: Ground) -> Iterator[dict[str, Any]]:
    alone = losses(ground)
    for name in CONFIGS:
        if name == "zero2" and importlib.util.find_spec("deepspeed") is None:
            yield {"config": name, "skipped": "deepspeed is not installed"}
            continue
        if name == "fsdp_offload" and not torch.cuda.is_available():
            yield {"config": name, "skipped": "it pins the host's memory for a GPU"}
            continue
        yield {"config": name, **_launched(ground, name, alone)}


def losses(ground: Ground) -> list[float]:
    """Losses of a few steps of SFT in this process, alone or one of several."""
    own = {"train_sft.max_steps": NUM_STEPS, "train_sft.eval_every_steps": NUM_STEPS, "train_sft.optimizer": "adamw"}
    params = ground.params_with(own)
    codec = load_codec(ground.trained)
    rows = encoded(codec, ground.demonstrations(64))
    return ground.sft(load_trainable(ground.trained, params.model, seed=1), codec, rows, params)[0]


def _launched(ground: Ground, name: str, alone: list[float]) -> dict[str, Any]:
    command = [sys.executable, "-W", "ignore", "-m", "posttrain.provenance.launcher"]
    command += ["--config_file", f"infra/accelerate/{name}.yaml", "--num_processes", "1", "--main_process_port", "0"]
    command += ["--module", "benchmarks.gpu.process", str(ground.folder)]
    command += ["--small"] if ground.is_small else []
    try:
        ran = subprocess.run(
            command, cwd=REPOSITORY, env=dict(os.environ), capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return {"ended": f"not within {LIMIT_S} s"}
    told = [line for line in ran.stdout.splitlines() if line.startswith(LOSSES)]
    if ran.returncode or not told:
        return {"ended": f"with exit code {ran.returncode}", "last_lines": ran.stderr.splitlines()[-8:]}
    found: dict[str, Any] = json.loads(told[-1].removeprefix(LOSSES))
    gap = max(abs(one - other) for one, other in zip(found["losses"], alone, strict=True))
    return {"ended": "in time", "backend": found["backend"], "loss_gap_max": gap}


def backend() -> str | None:
    """Backend of the processes' group; None where there is none."""
    return dist.get_backend() if dist.is_initialized() else None
