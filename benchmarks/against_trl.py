"""Times a GRPO step against TRL's own loop (`GRPOTrainer` with `environment_factory`).

Both train the SFT model of the last `dvc repro` on the same rl tasks, 16 x 8 episodes a step, with
a rate too small to change it: same weights, prompts, tools, reward, sampling, optimizer, dtype and
one thread. Times are CPU-seconds, so that a busy machine slows neither.
"""

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import TrainerCallback

from benchmarks.trl_peer import make_peer
from posttrain.config.params import Params, load_params
from posttrain.data.schemas import read_tasks
from posttrain.models.loading import load_codec, load_model
from posttrain.models.params import OptimizerParams
from posttrain.rewards.total import load_reward
from posttrain.rollout.episode_sampler import EpisodeSampler
from posttrain.train.losses import NoKl
from posttrain.train.online.learning import PolicyEpisodes
from posttrain.train.online.loop import train_online
from posttrain.train.online.params import OnlineParams, SamplingParams
from posttrain.train.online.trainer_state import TrainingInputs
from posttrain.train.resumable_trainer import open_run
from posttrain.types import ScoredEpisode, Task
from posttrain.worlds.catalog import make_domain, score_names
from posttrain.worlds.lookups.gold import gold_of
from posttrain.worlds.protocol import Domain

SFT = Path("data/models/sft")
TASKS = Path("data/raw/tasks.parquet")
NUM_STEPS, NUM_WARMUP = 5, 1


def main() -> None:
    torch.set_num_threads(1)  # threads that wait for each other on busy cores would count as CPU time
    compare_steps(load_params())


def compare_steps(params: Params) -> None:
    """Print tokens per second of play (generating, tools, scoring), and seconds of a whole step,
    both sides."""
    algorithm = _online(params)
    domain = make_domain(params.world)
    tasks = comparable(read_tasks(TASKS, "rl"), algorithm.tasks_per_step * 4)
    ours, theirs = measured_steps(params, SFT, domain, tasks, clock=time.process_time)

    episodes = algorithm.tasks_per_step * algorithm.group_size
    how = f"{NUM_STEPS} steps, float32, 1 thread, temperature 1"
    print(f"GRPO step: {episodes} episodes of {ours.turns:.1f} turns, {how};")
    print(f"  written tokens a step: posttrain {ours.written:.0f}, TRL {theirs.written:.0f}")
    for name, side in (("posttrain", ours), ("TRL environment_factory", theirs)):
        print(
            f"  {name:24} {side.tokens_per_s:7.0f} written tokens per CPU-second of play, "
            f"{side.step_s:6.2f} CPU-seconds a step"
        )
    print(f"  ratio: play {ours.tokens_per_s / theirs.tokens_per_s:.2f}, whole step {theirs.step_s / ours.step_s:.2f}")


def measured_steps(
    params: Params, sft: Path, domain: Domain, tasks: Sequence[Task], *, clock: Callable[[], float]
) -> "tuple[Side, Side]":
    """Ours and TRL's steps with the model of a folder, by a clock."""
    algorithm = _online(params)
    model, codec = load_model(sft, dtype=params.model.dtype), load_codec(sft)
    reward = load_reward(params.reward, score_names(domain))
    sampler = EpisodeSampler(
        model, codec, domain=domain, reward=reward, limits=params.agent, temperature=algorithm.temperature
    )
    source = _TimedEpisodes(sampler, clock)

    with tempfile.TemporaryDirectory() as folder:
        with open_run(Path(folder)) as run:
            steps = _StepClock(clock)
            run.progress = steps.on_step_end
            train_online(
                model,
                codec.tokenizer,
                TrainingInputs(tasks, source),
                params=algorithm.model_copy(update={"max_steps": NUM_STEPS + NUM_WARMUP}),
                max_context_tokens=params.agent.max_context_tokens,
                optimizer_params=OptimizerParams(lr=1e-9, optimizer="muon"),
                checkpoint_every_steps=10_000,
                seed=params.seed,
                run=run,
            )
        turns = sum(source.num_turns) / len(source.num_turns) / (algorithm.tasks_per_step * algorithm.group_size)
        ours = _side(source.written, source.play_s, steps, turns=turns)

        model, codec = load_model(sft, dtype=params.model.dtype), load_codec(sft)
        peer = make_peer(
            model,
            codec,
            domain=domain,
            tasks=tasks,
            reward=reward,
            params=algorithm,
            max_steps=NUM_STEPS + NUM_WARMUP,
            folder=Path(folder),
        )
        peer.clock, steps = clock, _StepClock(clock)
        peer.add_callback(steps)
        peer.train()
        return ours, _side(peer.written, peer.play_s, steps, turns=turns)


class _TimedEpisodes(PolicyEpisodes):
    """Plays, and counts seconds, tokens and turns of each step."""

    def __init__(self, sampler: EpisodeSampler, clock: Callable[[], float]) -> None:
        super().__init__(sampler)
        self._clock = clock
        self.play_s: list[float] = []
        self.written: list[int] = []
        self.num_turns: list[int] = []

    def run(
        self, tasks: Sequence[Task], seeds: Sequence[int], *, prefix_fracs: Sequence[float] = ()
    ) -> list[ScoredEpisode]:
        start = self._clock()
        episodes = super().run(tasks, seeds, prefix_fracs=prefix_fracs)
        self.play_s.append(self._clock() - start)
        self.written.append(sum(sum(played.trajectory.mask) for played in episodes))
        self.num_turns.append(sum(len(played.trajectory.turns) for played in episodes))
        return episodes


class Side(NamedTuple):
    """`tokens_per_s` of play, `step_s` of a whole step, `written` tokens a step."""

    tokens_per_s: float
    step_s: float
    written: float
    turns: float


def _side(written: Sequence[int], play_s: Sequence[float], steps: "_StepClock", *, turns: float) -> Side:
    tokens_per_s = sum(written[NUM_WARMUP:]) / sum(play_s[NUM_WARMUP:])
    return Side(tokens_per_s, steps.mean_s(), float(np.mean(written)), turns)


class _StepClock(TrainerCallback):  # type: ignore[misc]  # transformers is untyped
    """The time at the end of each step; the steps after the warm-up count."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ends: list[float] = []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._ends.append(self._clock())

    def mean_s(self) -> float:
        return (self._ends[-1] - self._ends[NUM_WARMUP - 1]) / NUM_STEPS


def _online(params: Params) -> OnlineParams:
    algorithm = params.train_policy.algorithm
    if not isinstance(algorithm, OnlineParams):
        raise SystemExit("train_policy.algorithm is not online; the benchmark needs its batch")
    # what the peer has, too: tasks in turn, and no divergence in the loss
    sampling = SamplingParams.model_validate({"order": {"type": "uniform"}, "max_refills": 0})
    return algorithm.model_copy(update={"sampling": sampling, "temperature": 1.0, "kl": NoKl(type="none")})


def comparable(tasks: Sequence[Task], count: int) -> list[Task]:
    """Those of two to five turns that no user's reply interrupts (TRL's loop has none), tools in
    the order in which TRL lists methods."""
    played = [task for task in tasks if gold_of(task).calls and gold_of(task).asks is None]
    return [replace(task, tools=tuple(sorted(task.tools))) for task in played[:count]]


if __name__ == "__main__":
    main()
