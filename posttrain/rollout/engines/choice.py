"""Chooses the generation engine by environment variables: it is a fact about the machine, so a
change of it reruns nothing.

`POSTTRAIN_ENGINE`: `torch` (the default, in this process) or `vllm`. `POSTTRAIN_VLLM_URLS`: the
servers, commas between them, or `@FILE` with one a line, which is read again every few seconds.
`POSTTRAIN_VLLM_SYNC`: how whole weights get to them, by `disk` (the default), or over the network
by `gloo` or `nccl`. `POSTTRAIN_VLLM_FOLDER`: where weights are written for `disk`, and adapters
always, on a disk that the servers see. `POSTTRAIN_VLLM_COLOCATED`: `1` where servers share the
trainer's GPUs and sleep while it trains.
"""

import atexit
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from posttrain.models import distributed
from posttrain.rollout.engines.protocol import Engine
from posttrain.rollout.engines.torch_engine import TorchEngine
from posttrain.rollout.engines.weight_stream import BACKENDS
from posttrain.runtime.exits import ConfigurationError

NUM_SLOTS = 128  # episodes that write at once; beyond, a CPU gains nothing and a GPU's memory fills with caches


def make_engine(
    model: Any,
    *,
    max_context_tokens: int,
    check_prompts: Callable[[], Sequence[Sequence[int]]],
    stop_ids: frozenset[int],
    takes_weights: bool = False,
    message_seconds: float = 120.0,
) -> Engine:
    """The engine that the environment names, with the model's current weights; with `takes_weights`
    one in this process leaves none to the model. `check_prompts` is called only where servers are
    checked, which have `message_seconds` for each message, waiting included."""
    name = os.environ.get("POSTTRAIN_ENGINE", "torch")
    match name:
        case "torch" if distributed.is_sharded():
            raise ConfigurationError(
                "POSTTRAIN_ENGINE is torch, which plays with the weights of its own process, and FSDP leaves none all "
                "of them: start vLLM servers (make serve-vllm, POSTTRAIN_ENGINE=vllm, docs/several-processes.md), or "
                "take infra/accelerate/ddp.yaml"
            )
        case "torch":
            size = {"num_slots": NUM_SLOTS, "max_context_tokens": max_context_tokens}
            return TorchEngine(model, **size, takes_weights=takes_weights)
        case "vllm":
            from posttrain.rollout.engines.trainer_weights import ShardHolder
            from posttrain.rollout.engines.vllm_engine import VllmEngine

            if distributed.is_sharded() and not distributed.is_first():
                return ShardHolder(model, check_prompts())
            folder = Path(os.environ.get("POSTTRAIN_VLLM_FOLDER", ".posttrain/vllm"))
            how: dict[str, Any] = {"stop_ids": stop_ids, "folder": folder, "timeout_s": message_seconds}
            how |= {"stream": _stream(), "is_colocated": os.environ.get("POSTTRAIN_VLLM_COLOCATED") == "1"}
            engine = VllmEngine(model, urls=server_urls, check_prompts=check_prompts(), **how)
            atexit.register(engine.close)
            return engine
    raise ConfigurationError(f"POSTTRAIN_ENGINE is {name!r}; there are torch and vllm")


def _stream() -> str | None:
    named = os.environ.get("POSTTRAIN_VLLM_SYNC", "disk")
    if named not in ("disk", *BACKENDS):
        raise ConfigurationError(f"POSTTRAIN_VLLM_SYNC is {named!r}; there are disk, {' and '.join(BACKENDS)}")
    if named == "nccl" and not torch.cuda.is_available():
        raise ConfigurationError("POSTTRAIN_VLLM_SYNC is nccl, and there is no GPU: take gloo or disk")
    return None if named == "disk" else named


def is_elsewhere() -> bool:
    return os.environ.get("POSTTRAIN_ENGINE", "torch") != "torch"


def server_urls() -> list[str]:
    """The servers' URLs, without duplicates. Raises ConfigurationError where there are none."""
    named = os.environ.get("POSTTRAIN_VLLM_URLS", "")
    if not named:
        raise ConfigurationError(
            "POSTTRAIN_ENGINE is vllm and POSTTRAIN_VLLM_URLS names no server: "
            "set it to http://127.0.0.1:8101,… or to @FILE"
        )
    text = Path(named[1:]).read_text(encoding="utf-8") if named.startswith("@") else named
    return list(dict.fromkeys(url.rstrip("/") for url in text.replace(",", " ").split()))
