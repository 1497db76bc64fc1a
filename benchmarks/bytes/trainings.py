"""Digests of the weights after a warm-up, a fine-tuning from there and a GRPO from there, by the
library's own code on the default run's model, and the seconds of each.

The knobs are those of `params.yaml` but for the number of steps, of tasks and of rows: what is
asked is whether two processors make equal bytes, and a difference of one bit in a step is one at
the end.
"""

import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.bytes.operations import digest
from posttrain.config.params import Params
from posttrain.data.schemas import TrajectoryRow
from posttrain.models.loading import load_codec, save_model
from posttrain.models.params import ScratchModel
from posttrain.models.scratch import scratch_model
from posttrain.models.tokenizer import train_tokenizer
from posttrain.models.warmup import copy_rows, warm_up
from posttrain.rewards.total import load_reward
from posttrain.rollout.demonstrations import demonstrate
from posttrain.rollout.episode_sampler import EpisodeSampler
from posttrain.train.online.inputs import TrainingInputs
from posttrain.train.online.loop import train_online
from posttrain.train.online.params import OnlineParams
from posttrain.train.online.policy_episodes import PolicyEpisodes
from posttrain.train.resumable_trainer import open_run
from posttrain.train.sft import train_sft
from posttrain.train.trainable import load_trainable, save_trained
from posttrain.worlds.catalog import make_domain, require_expert, score_names


@dataclass(frozen=True, slots=True)
class Size:
    """`num_tasks` are demonstrated; a step is of `batch_size` rows, or of `tasks_per_step`
    groups."""

    num_tasks: int
    num_warmup_steps: int
    num_sft_steps: int
    batch_size: int
    tasks_per_step: int
    group_size: int


FULL = Size(num_tasks=600, num_warmup_steps=30, num_sft_steps=50, batch_size=16, tasks_per_step=16, group_size=8)
QUICK = Size(num_tasks=60, num_warmup_steps=4, num_sft_steps=6, batch_size=8, tasks_per_step=4, group_size=4)
NUM_GRPO_STEPS = 2


def digest_trainings(params: Params, size: Size) -> Iterator[tuple[str, str, float]]:
    """Name, digest of the weights and seconds of each training, when it is done."""
    demonstrations, dev = _demonstrations(params, size)
    with tempfile.TemporaryDirectory(prefix="posttrain-bytes-") as folder:
        base, sft = Path(folder) / "base", Path(folder) / "sft"
        started_s = time.perf_counter()
        weights = _warm_up(params, size, demonstrations, base)
        yield f"warm-up, {size.num_warmup_steps} steps", weights, time.perf_counter() - started_s
        started_s = time.perf_counter()
        weights = _fine_tune(params, size, (demonstrations, dev), base, sft)
        yield f"SFT, {size.num_sft_steps} steps", weights, time.perf_counter() - started_s
        started_s = time.perf_counter()
        weights = _reinforce(params, size, sft)
        yield f"GRPO, {NUM_GRPO_STEPS} steps", weights, time.perf_counter() - started_s


def _demonstrations(params: Params, size: Size) -> tuple[list[TrajectoryRow], list[TrajectoryRow]]:
    """The expert's with its flaws, and without on the dev tasks."""
    domain = require_expert(make_domain(params.world), needed_by="this benchmark")
    rows = [
        demonstrate(
            domain,
            domain.tasks(split, count),
            limits=params.agent,
            seed=params.seed,
            is_flawless=is_flawless,
            reasoning_frac=params.generate_data.reasoning_frac,
        )
        for split, count, is_flawless in (("sft", size.num_tasks, False), ("dev", size.batch_size, True))
    ]
    return rows[0], rows[1]


def _warm_up(params: Params, size: Size, demonstrations: list[TrajectoryRow], base: Path) -> str:
    """As `prepare_model` does."""
    assert isinstance(params.model, ScratchModel), "the default run's model is one from scratch"
    conversations = [row.trajectory.messages for row in demonstrations]
    tokenizer = train_tokenizer(
        conversations,
        tool_names={tool["function"]["name"] for row in demonstrations for tool in row.tools},
        vocab_size=params.model.vocab_size,
        max_length=params.agent.max_context_tokens,
    )
    model = scratch_model(
        params.model,
        tokenizer=tokenizer,
        max_context_tokens=params.agent.max_context_tokens,
        seed=params.seed,
    )
    changes = {"warmup_steps": size.num_warmup_steps, "warmup_batch_size": 4 * size.batch_size}
    prepare = params.prepare_model.model_copy(update=changes)
    count = prepare.warmup_steps * prepare.warmup_batch_size
    rows = copy_rows(conversations, tokenizer, count=count, seed=params.seed)
    warm_up(model, tokenizer, rows, prepare, on_step=lambda *_: None)
    save_model(model, tokenizer, base)
    return digest(model.parameters())


def _fine_tune(params: Params, size: Size, splits: tuple[list[TrajectoryRow], ...], base: Path, sft: Path) -> str:
    """As `train_sft` does, without resampling."""
    codec, model = load_codec(base), load_trainable(base, params.model, seed=params.seed)
    rows, dev_rows = (codec.encode_rows((row.trajectory.messages, row.tools) for row in split) for split in splits)
    changes = {
        "max_steps": size.num_sft_steps,
        "batch_size": size.batch_size,
        "eval_every_steps": size.num_sft_steps,
    }
    with open_run(base.parent / "train_sft") as run:
        train_sft(
            model,
            codec.tokenizer,
            rows=rows,
            values=[row.labels["kind"] for row in splits[0]],
            shares=params.train_sft.label_weights["kind"],
            dev_rows=dev_rows,
            params=params.train_sft.model_copy(update=changes),
            seed=params.seed,
            run=run,
        )
    made = digest(model.parameters())
    save_trained(model, codec.tokenizer, sft)
    return made


def _reinforce(params: Params, size: Size, sft: Path) -> str:
    """As `train_policy` does online."""
    algorithm = params.train_policy.algorithm
    assert isinstance(algorithm, OnlineParams), "the default run learns online"
    changes = {"max_steps": NUM_GRPO_STEPS, "tasks_per_step": size.tasks_per_step, "group_size": size.group_size}
    codec, model = load_codec(sft), load_trainable(sft, params.model, seed=params.seed)
    domain = make_domain(params.world)
    sampler = EpisodeSampler(
        model,
        codec,
        domain=domain,
        reward=load_reward(params.reward, score_names(domain)),
        limits=params.agent,
        temperature=algorithm.temperature,
    )
    before = digest(model.parameters())
    with open_run(sft.parent / "train_policy") as run:
        train_online(
            model,
            codec.tokenizer,
            TrainingInputs(domain.tasks("rl", NUM_GRPO_STEPS * size.tasks_per_step), PolicyEpisodes(sampler)),
            params=algorithm.model_copy(update=changes),
            max_context_tokens=params.agent.max_context_tokens,
            lr=params.train_policy.lr,
            optimizer=params.train_policy.optimizer,
            checkpoint_every_steps=NUM_GRPO_STEPS,
            seed=params.seed,
            run=run,
        )
    made: Any = digest(model.parameters())
    assert made != before, "no group of these episodes had rewards that differ, so nothing was learnt: play more"
    return str(made)
