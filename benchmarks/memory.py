"""Measures whether a rollout's memory is bounded by its slots, however many episodes are played.

Each measurement is a process of its own. What it holds anyway (PyTorch, the libraries, the model)
is more than the caches of the slots, so a peak is also given without what was held before the first
episode. The peer is `transformers.generate` as it is usually called, all first turns in one batch
padded on the left. A long run drops its episodes as a training loop does, a batch after the other,
and takes the weights over after each; before the first sample that counts it has been through all
tasks, whose prompts are kept.
"""

import gc
import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from posttrain.config.params import Params, load_params
from posttrain.data.schemas import read_tasks
from posttrain.models.codec import ChatCodec
from posttrain.models.loading import load_codec, load_model
from posttrain.rollout.engines.torch_engine import TorchEngine
from posttrain.rollout.episode_sampler import Stream, episode_seeds
from posttrain.rollout.episodes import play_episodes
from posttrain.rollout.policy import TokenPolicy
from posttrain.traces.values import Run, traced
from posttrain.traces.writer import TraceWriter
from posttrain.types import Task
from posttrain.worlds.catalog import make_domain

MODEL = Path("data/models/sft")
TASKS = Path("data/raw/tasks.parquet")
NUM_SLOTS, MANY = 64, 512
NUM_EPISODES, BATCH, NUM_WARMUP = 10_000, 500, 1_000
MIB = 2**20
_STATUS, _STATM = Path("/proc/self/status"), Path("/proc/self/statm")


def main() -> None:
    if len(sys.argv) > 1:
        name, *numbers = sys.argv[1:]
        print(json.dumps({"batch": _batch, "generate": _generate, "long": _long}[name](*map(int, numbers))))
        return
    print(f"memory, MiB at the peak (and above what the process held before); {NUM_SLOTS} slots, one thread:")
    few, many = (_measure("batch", count) for count in (NUM_SLOTS, MANY))
    _print_pair("torch engine", few, many)
    few, many = (_measure("generate", count) for count in (NUM_SLOTS, MANY))
    _print_pair("transformers.generate, first turns", few, many)
    print(f"{NUM_EPISODES} episodes, {BATCH} at a time, each batch dropped:")
    for name, is_traced in (("without traces", 0), ("with traces", 1)):
        _print_growth(name, _measure("long", is_traced))


def _print_pair(name: str, few: dict[str, Any], many: dict[str, Any]) -> None:
    figures = "   ".join(
        f"{count} episodes {one['peak']:5.0f} ({one['above']:4.0f})" for count, one in ((NUM_SLOTS, few), (MANY, many))
    )
    print(f"  {name:36} {figures}   ratio {many['peak'] / few['peak']:.2f} ({many['above'] / few['above']:.2f})")


def _print_growth(name: str, found: dict[str, Any]) -> None:
    """By least squares through the samples behind the warm-up."""
    played, held = np.array(found["samples"]).T
    is_counted = played >= NUM_WARMUP
    (slope, _), covariance = np.polyfit(played[is_counted] / 1e3, held[is_counted], 1, cov=True)
    print(
        f"  {name:16} {slope:+.2f} ± {1.96 * covariance[0, 0] ** 0.5:.2f} MiB per 1,000 episodes after the first "
        f"{NUM_WARMUP}; MiB every {BATCH}:"
    )
    print(f"    {' '.join(f'{value:.0f}' for value in held)}")


def _measure(name: str, number: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.memory", name, str(number)]
    result: dict[str, Any] = json.loads(
        subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1]
    )
    return result


def _batch(count: int) -> dict[str, float]:
    """`count` episodes at once, all kept until the last one is over."""
    model, codec, params = _load()
    policy = _policy(model, codec, params)[1]
    before = _held_mib()
    play_episodes(
        policy,
        _tasks(count),
        domain=make_domain(params.world),
        limits=params.agent,
        seeds=episode_seeds(Stream.MEASUREMENT, 1, count=count),
    )
    return {"peak": _peak_mib(), "above": _peak_mib() - before}


def _generate(count: int) -> dict[str, float]:
    """The first turn of the same episodes in one batch."""
    model, codec, params = _load()
    domain = make_domain(params.world)
    prompts = [
        codec.encode_prompt(task.messages, [domain.tools[name].schema() for name in task.tools])
        for task in _tasks(count)
    ]
    width = max(map(len, prompts))
    before = _held_mib()
    model.generate(
        torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts]),
        attention_mask=torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]),
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=params.agent.max_new_tokens,
        eos_token_id=sorted(codec.stop_ids),
        pad_token_id=0,
    )
    return {"peak": _peak_mib(), "above": _peak_mib() - before}


def _long(is_traced: int) -> dict[str, Any]:
    """(episodes played, MiB held) after each batch."""
    model, codec, params = _load()
    engine, policy = _policy(model, codec, params)
    domain, tasks = make_domain(params.world), _tasks(NUM_EPISODES)
    samples = []
    with tempfile.TemporaryDirectory(prefix="posttrain-bench-") as folder:
        writer = _writer(Path(folder) / "traces.db") if is_traced else None
        for start in range(0, NUM_EPISODES, BATCH):
            batch = tasks[start : start + BATCH]
            played = play_episodes(
                policy,
                batch,
                domain=domain,
                limits=params.agent,
                seeds=episode_seeds(Stream.MEASUREMENT, 1, start, count=len(batch)),
            )
            if writer is not None:
                writer.record(traced(played, batch, step=start // BATCH))
                writer.flush()
            del played
            engine.refresh_weights()
            gc.collect()
            samples.append((start + BATCH, _held_mib()))
        if writer is not None:
            writer.close()
    return {"samples": samples}


def _load() -> tuple[Any, ChatCodec, Params]:
    torch.set_num_threads(1)
    torch.manual_seed(1)
    params = load_params()
    return load_model(MODEL, dtype=params.model.dtype).eval(), load_codec(MODEL), params


def _policy(model: Any, codec: ChatCodec, params: Params) -> tuple[TorchEngine, TokenPolicy]:
    engine = TorchEngine(model, num_slots=NUM_SLOTS, max_context_tokens=params.agent.max_context_tokens)
    return engine, TokenPolicy(engine, codec, temperature=1.0)


def _writer(path: Path) -> TraceWriter:
    return TraceWriter(
        path, Run(uuid.uuid4().hex, "benchmark", "0" * 16, time.time(), {}), max_bytes=10**12, warn=sys.exit
    )


def _tasks(count: int) -> Sequence[Task]:
    tasks = read_tasks(TASKS, "rl")
    return [tasks[index % len(tasks)] for index in range(count)]


def _held_mib() -> float:
    return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / MIB


def _peak_mib() -> float:
    """Not `getrusage`'s, which a process inherits from the one that started it."""
    [line] = [line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    main()
