"""Measures asynchronous play where tools are slow: `python -m benchmarks.slow_tools`.

The toy world's tools take 0.3 to 30 s (log-uniform, mean 6.4 s) to answer. GRPO trains the same SFT
model with `max_staleness` 0, 1 and 4 until as many tokens are generated. Told are the wall time,
the shares of it in which engine and trainer compute (CPU-seconds of their threads), how old the
weights were that wrote what was trained on, and success before and after on dev tasks, played
without the waits. Trainings wait nearly all the time, so `--beside` of them run at once; each has
one thread. Writes `reports/slow_tools.json`.
"""

import argparse
import asyncio
import functools
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import numpy as np
import torch

from benchmarks.arms import REPOSITORY
from benchmarks.gpu.ground import Ground
from posttrain.config.params import Params
from posttrain.data.files import write_json
from posttrain.models.loading import load_codec, load_model
from posttrain.provenance.costs import processor_kind
from posttrain.rewards.total import load_reward
from posttrain.rollout.engines.slotted_decoder import SlottedDecoder
from posttrain.rollout.episode_sampler import EpisodeSampler, Stream, episode_seeds
from posttrain.runtime.plain_yaml import read_yaml
from posttrain.tracking.metrics_log import read_metrics
from posttrain.train.online import loop
from posttrain.train.online.learning import PolicyEpisodes
from posttrain.train.online.trainer_state import TrainingInputs
from posttrain.train.resumable_trainer import METRICS, open_run
from posttrain.types import ScoredEpisode, Task
from posttrain.worlds.catalog import make_domain, score_names
from posttrain.worlds.protocol import Domain, World
from posttrain.worlds.tools import Tool

SHORTEST_S, LONGEST_S = 0.3, 30.0
ONLINE: Mapping[str, Any] = {
    "agent.tool_timeout_s": 60.0,
    "train_policy.algorithm.max_steps": 1000,  # the tokens end it
    "train_policy.lr": 2.0e-3,
    "train_policy.algorithm.sampling.order": {"type": "uniform"},
}


class SlowTools:
    """A domain whose tools wait before they answer, each call for a time of its own."""

    def __init__(self, domain: Domain, *, seed: int) -> None:
        self._domain, self._random = domain, random.Random(seed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._domain, name)

    def open(self, task: Task) -> World:
        world = self._domain.open(task)
        tools = {name: self._slow(tool) for name, tool in world.tools().items()}
        world.tools = lambda: tools  # type: ignore[method-assign]
        return world

    def _slow(self, tool: Tool) -> Tool:
        @functools.wraps(tool.function)
        async def waiting(**arguments: Any) -> Any:
            await asyncio.sleep(SHORTEST_S * (LONGEST_S / SHORTEST_S) ** self._random.random())
            return tool.function(**arguments)

        return replace(tool, function=waiting, is_instant=False)


class ToyGround(Ground):
    """Its SFT model is the demo's with fewer steps, so that there is something to learn."""

    @functools.cached_property
    def params(self) -> Params:
        return _params(self, {"train_sft.max_steps": 250, "train_sft.eval_every_steps": 250})


def main() -> None:
    parser = argparse.ArgumentParser("benchmarks.slow_tools", description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3])
    parser.add_argument("--staleness", type=int, nargs="*", default=[0, 1, 4])
    parser.add_argument("--tokens", type=int, default=100_000, help="that each training generates")
    parser.add_argument("--beside", type=int, default=9, help="trainings at a time")
    given = parser.parse_args()
    with TemporaryDirectory() as folder:
        _ = ToyGround(Path(folder), is_small=False).trained
        with ProcessPoolExecutor(given.beside, mp_context=get_context("spawn")) as pool:
            arms = [(seed, staleness) for seed in given.seeds for staleness in given.staleness]
            trainings = [pool.submit(train, Path(folder), *arm, given.tokens) for arm in arms]
            runs = []
            for training in trainings:
                runs.append(training.result())
                print(json.dumps(runs[-1]), flush=True)
    found = {"processor": processor_kind(), "beside": given.beside, "tool_seconds": [SHORTEST_S, LONGEST_S]}
    write_json(Path("reports/slow_tools.json"), {**found, "runs": runs})


def _params(ground: Ground, overrides: Mapping[str, Any]) -> Params:
    return ground.checkout_with({**read_yaml(REPOSITORY / "experiments/demo.yaml")["set"], **overrides})


def train(folder: Path, seed: int, max_staleness: int, num_tokens: int) -> dict[str, Any]:
    """The figures of one training from the SFT model in `folder`."""
    torch.set_num_threads(1)
    own = Ground(folder / f"{seed}-{max_staleness}", is_small=False)
    knobs = {"train_policy.algorithm.max_staleness": max_staleness}
    knobs["train_policy.algorithm.max_generated_tokens"] = num_tokens
    params = _params(own, {**ONLINE, **knobs})
    algorithm, sft = params.train_policy.algorithm, folder / "trained"
    model, codec = load_model(sft), load_codec(sft)
    domain = make_domain(params.world)

    def sampler(domain: Domain) -> EpisodeSampler:
        reward = load_reward(params.reward, score_names(domain))
        how = {"limits": params.agent, "temperature": algorithm.temperature}
        return EpisodeSampler(model, codec, domain=domain, reward=reward, **how)

    before = success(sampler(domain))
    source = PolicyEpisodes(sampler(SlowTools(domain, seed=seed)))
    seen: Counter[str] = Counter()
    own.folder.mkdir(exist_ok=True)
    began = time.monotonic()
    with open_run(own.folder) as run, busy() as seconds:
        loop.train_online(
            model,
            codec.tokenizer,
            TrainingInputs(domain.tasks("rl", params.world.num_rl_tasks), source, on_step=_counting(seen)),
            params=algorithm,
            max_context_tokens=params.agent.max_context_tokens,
            optimizer_params=params.train_policy,
            checkpoint_every_steps=10_000,
            seed=seed,
            run=run,
        )
    wall = time.monotonic() - began
    steps = read_metrics(own.folder / METRICS)
    return {
        "seed": seed,
        "max_staleness": max_staleness,
        "steps": len(steps),
        "wall_s": round(wall, 1),
        "generated_tokens": steps[-1]["generated_tokens"],
        "engine_busy": round(seconds["engine"] / wall, 3),
        "trainer_busy": round(seconds["trainer"] / wall, 3),
        "staleness_mean": round(float(np.mean([step["staleness"] for step in steps])), 2),
        "staleness_max": max(step["staleness"] for step in steps),
        "episodes_over_versions": round(seen["of several versions"] / seen["episodes"], 3),
        "tokens_without_version": seen["tokens"] - seen["tokens of a version"],
        "before": before,
        "after": success(sampler(domain)),
    }


def success(sampler: EpisodeSampler) -> dict[str, float]:
    """Share of dev tasks that are solved, greedily and by two plays at temperature 1."""
    tasks = sampler.domain.tasks("dev", 64)

    def share(tasks: Sequence[Task], temperature: float) -> float:
        seeds = episode_seeds(Stream.MEASUREMENT, 1, count=len(tasks))
        return round(
            float(np.mean([one.is_success for one in sampler.sample(tasks, seeds, temperature=temperature)])), 3
        )

    return {"greedy": share(tasks, 0.0), "sampled": share([*tasks, *tasks], 1.0)}


def _counting(seen: Counter[str]) -> Callable[[int, Sequence[ScoredEpisode], Sequence[float]], None]:
    def on_step(_: int, episodes: Sequence[ScoredEpisode], __: Sequence[float]) -> None:
        for one in episodes:
            turns = one.trajectory.turns
            seen["episodes"] += 1
            seen["of several versions"] += len({turn.policy_version for turn in turns}) > 1
            seen["tokens"] += sum(one.trajectory.mask)
            seen["tokens of a version"] += sum(turn.num_written for turn in turns)

    return on_step


@contextmanager
def busy() -> Iterator[Counter[str]]:
    """Context that counts CPU-seconds in which the engine's and the trainer's threads compute."""
    seconds: Counter[str] = Counter()

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def measured(*args: Any, **kwargs: Any) -> Any:
            began = time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                seconds[name] += time.thread_time() - began

        return measured

    with (
        mock.patch.object(SlottedDecoder, "read", timed("engine", SlottedDecoder.read)),
        mock.patch.object(SlottedDecoder, "write", timed("engine", SlottedDecoder.write)),
        mock.patch.object(loop, "learn", timed("trainer", loop.learn)),
    ):
        yield seconds


if __name__ == "__main__":
    main()
