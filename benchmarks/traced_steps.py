"""Measures what traces cost a GRPO step of the default run.

Two processes train the SFT model of the last `dvc repro` as `train_policy` does, one with traces
and one without, with one thread on the same tasks under the same seeds, so that step k is the same
work in both. They take turns: each step is played and trained by one while the other waits, and who
goes first changes with the step. A step's time is CPU-seconds of the process, the writer's thread
included, and seconds on the wall; what that thread used is also read alone, because busy cores move
a step's time by more than it needs.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.against_trl import SFT, TASKS
from posttrain.config.params import load_params
from posttrain.data.schemas import read_tasks
from posttrain.models.loading import load_codec, load_model
from posttrain.rewards.total import load_reward
from posttrain.rollout.episode_sampler import EpisodeSampler
from posttrain.rollout.generator import ScoredEpisode
from posttrain.traces.values import traced
from posttrain.traces.writer import open_traces
from posttrain.train.online.inputs import TrainingInputs
from posttrain.train.online.loop import train_online
from posttrain.train.online.params import OnlineParams
from posttrain.train.online.policy_episodes import PolicyEpisodes
from posttrain.train.resumable_trainer import open_run
from posttrain.worlds.catalog import make_domain, score_names

NUM_STEPS, NUM_WARMUP = 48, 2


def main() -> None:
    if len(sys.argv) > 1:
        _train(Path(sys.argv[1]))
        return
    with tempfile.TemporaryDirectory(prefix="posttrain-bench-") as folder:
        sides = [_Side(Path(folder) / name, traces) for name, traces in (("on", f"{folder}/traces.db"), ("off", "off"))]
        for step in range(NUM_WARMUP + NUM_STEPS):
            for side in sides if step % 2 else sides[::-1]:
                side.step()
        for side in sides:
            side.stop()
    on, off = (side.seconds[NUM_WARMUP:] for side in sides)
    print(
        f"traces: {NUM_STEPS} GRPO steps of the default run with and without, in turns, after {NUM_WARMUP}; "
        "median (5 % … 95 %):"
    )
    for place, name in enumerate(("CPU-seconds", "seconds on the wall")):
        with_s, without_s = ([step[place] for step in steps] for steps in (on, off))
        ratios = sorted(one / other for one, other in zip(with_s, without_s, strict=True))
        cut = len(ratios) // 20
        print(
            f"  {name:20} with {statistics.median(with_s):.3f}, without {statistics.median(without_s):.3f}, "
            f"ratio of a step {statistics.median(ratios):.4f} ({ratios[cut]:.4f} … {ratios[-1 - cut]:.4f}), "
            f"of all {sum(with_s) / sum(without_s):.4f}"
        )
    writer_s, step_s = (statistics.median(step[place] for step in on) for place in (2, 0))
    print(f"  the writer's thread {1e3 * writer_s:.1f} ms of CPU, {100 * writer_s / step_s:.2f} % of the step's")


class _Side:
    """A process that trains a step whenever it is asked; `seconds` of each step: of the processor,
    of the wall, of the processor for the writer."""

    def __init__(self, folder: Path, traces: str) -> None:
        self.seconds: list[list[float]] = []
        command = [sys.executable, "-m", "benchmarks.traced_steps", str(folder)]
        environment = {**os.environ, "POSTTRAIN_TRACES": traces}
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def step(self) -> None:
        """Returns when it is trained."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(flush=True, file=self._process.stdin)
        self.seconds.append(json.loads(self._process.stdout.readline()))

    def stop(self) -> None:
        """Its next step never begins."""
        self._process.communicate()


class _Clock:
    """Waits before each step until it is asked for, and says afterwards what it took."""

    def __init__(self) -> None:
        self._started: list[float] = []

    def turn(self, *_: object) -> None:
        if self._started:
            print(json.dumps([now - then for now, then in zip(_now(), self._started, strict=True)]), flush=True)
        if not sys.stdin.readline():
            sys.exit()
        self._started = _now()


def _now() -> list[float]:
    writer_s = [
        time.clock_gettime(time.pthread_getcpuclockid(one.ident))
        for one in threading.enumerate()
        if one.name == "traces" and one.ident
    ]
    return [time.process_time(), time.perf_counter(), sum(writer_s)]


def _train(folder: Path) -> None:
    torch.set_num_threads(1)
    params = load_params()
    algorithm = params.train_policy.algorithm
    if not isinstance(algorithm, OnlineParams):
        raise SystemExit("train_policy.algorithm is not online; there is no step to measure")
    model, codec, tasks = load_model(SFT, dtype=params.model.dtype), load_codec(SFT), read_tasks(TASKS, "rl")
    task_of = {task.task_id: task for task in tasks}
    domain = make_domain(params.world)
    sampler = EpisodeSampler(
        model,
        codec,
        domain=domain,
        reward=load_reward(params.reward, score_names(domain)),
        limits=params.agent,
        temperature=algorithm.temperature,
    )
    clock = _Clock()
    with (
        open_run(folder, progress=clock.turn) as run,
        open_traces("train_policy", key="0" * 16, params=params) as record,
    ):

        def on_step(step: int, played: Sequence[ScoredEpisode], advantages: Sequence[float]) -> None:
            own = [task_of[one.trajectory.task_id] for one in played]
            record(traced([one.trajectory for one in played], own, advantages=advantages, step=step))

        clock.turn()
        train_online(
            model,
            codec.tokenizer,
            TrainingInputs(tasks, PolicyEpisodes(sampler), on_step=on_step),
            params=algorithm,
            max_context_tokens=params.agent.max_context_tokens,
            lr=params.train_policy.lr,
            optimizer=params.train_policy.optimizer,
            checkpoint_every_steps=params.train_policy.checkpoint_every_steps,
            seed=params.seed,
            run=run,
        )


if __name__ == "__main__":
    main()
