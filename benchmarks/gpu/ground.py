"""Shared setup of the parts: the default run's knobs, world and reward, and a small model that one
of them trains and the others find."""

import gc
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from benchmarks.arms import REPOSITORY, SMALL, apply_overrides
from posttrain.config.params import Params
from posttrain.data.schemas import TrajectoryRow
from posttrain.models.codec import ChatCodec, TokenRow
from posttrain.models.distributed import device
from posttrain.models.loading import save_model
from posttrain.models.params import ScratchModel
from posttrain.models.scratch import scratch_model
from posttrain.models.tokenizer import train_tokenizer
from posttrain.models.warmup import copy_rows, warm_up
from posttrain.rewards.total import load_reward
from posttrain.rollout.episode_sampler import EpisodeSampler
from posttrain.rollout.episodes import demonstrate
from posttrain.runtime.plain_yaml import read_yaml
from posttrain.tracking.metrics_log import read_metrics
from posttrain.train.online.learning import PolicyEpisodes
from posttrain.train.online.loop import train_online
from posttrain.train.online.trainer_state import TrainingInputs
from posttrain.train.resumable_trainer import METRICS, open_run
from posttrain.train.sft import train_sft
from posttrain.worlds.catalog import make_domain, require_expert, score_names
from posttrain.worlds.protocol import Domain

MODEL: dict[str, Any] = {"model.hidden_size": 256, "model.num_layers": 4, "model.mlp_size": 768}
SHORT: dict[str, Any] = {  # on a card the steps of so small a model wait for its launches
    "prepare_model.warmup_steps": 150,
    "train_sft.max_steps": 300,
    "train_sft.batch_size": 32,
    "train_sft.eval_every_steps": 300,
    "world.num_sft_tasks": 3000,
}


@dataclass(frozen=True)
class Ground:
    """`folder` is the parts' own; where `is_small` they take seconds on a processor, and nothing
    they find has any worth."""

    folder: Path
    is_small: bool

    @cached_property
    def params(self) -> Params:
        return self.params_with({})

    def params_with(self, overrides: Mapping[str, Any]) -> Params:
        """Those of the small model, with these of one's own."""
        return self.checkout_with({**(SMALL if self.is_small else {**MODEL, **SHORT}), **overrides})

    def checkout_with(self, overrides: Mapping[str, Any]) -> Params:
        """The checkout's knobs, with these of one's own."""
        params_yaml = self.folder / "params.yaml"
        self.folder.mkdir(parents=True, exist_ok=True)
        params_yaml.write_text((REPOSITORY / "params.yaml").read_text(encoding="utf-8"), encoding="utf-8")
        apply_overrides(params_yaml, overrides)
        return Params.model_validate(read_yaml(params_yaml))

    @cached_property
    def domain(self) -> Domain:
        return make_domain(self.params.world)

    def demonstrations(self, count: int, *, params: Params | None = None) -> list[TrajectoryRow]:
        """Demonstrations by the world's expert, without flaws."""
        own = params or self.params
        domain = require_expert(make_domain(own.world), needed_by="the benchmark")
        tasks = domain.tasks("sft", count)
        return demonstrate(domain, tasks, limits=own.agent, seed=1, is_flawless=True, reasoning_frac=0.0)

    def sampler(
        self, model: Any, codec: ChatCodec, *, temperature: float, params: Params | None = None
    ) -> EpisodeSampler:
        own = params or self.params
        domain = make_domain(own.world)
        return EpisodeSampler(
            model,
            codec,
            domain=domain,
            reward=load_reward(own.reward, score_names(domain)),
            limits=own.agent,
            temperature=temperature,
        )

    @cached_property
    def trained(self) -> Path:
        """The folder of the small model after SFT; whoever asks first trains it."""
        folder = self.folder / "trained"
        if not folder.exists():
            self._train(folder)
        return folder

    def _train(self, folder: Path) -> None:
        params = self.params
        assert isinstance(params.model, ScratchModel)
        shown = self.demonstrations(params.world.num_sft_tasks)
        conversations = [row.trajectory.messages for row in shown]
        names = {tool["function"]["name"] for row in shown for tool in row.tools}
        length = params.agent.max_context_tokens
        tokenizer = train_tokenizer(
            conversations, tool_names=names, vocab_size=params.model.vocab_size, max_length=length
        )
        model = scratch_model(params.model, tokenizer=tokenizer, max_context_tokens=length, seed=1).to(device())
        prepare = params.prepare_model
        rows = copy_rows(conversations, tokenizer, count=prepare.warmup_steps * prepare.warmup_batch_size, seed=1)
        warm_up(model, tokenizer, rows, prepare, on_step=lambda *_: None)
        self.sft(model, ChatCodec(tokenizer), encoded(ChatCodec(tokenizer), shown), params)
        save_model(model, tokenizer, folder)

    def sft(self, model: Any, codec: ChatCodec, rows: Sequence[TokenRow], params: Params) -> tuple[list[float], float]:
        """Train in place; the losses of the steps, and seconds."""
        run_folder = self._new_folder()
        began = time.monotonic()
        with open_run(run_folder) as run:
            train_sft(
                model,
                codec.tokenizer,
                rows=rows,
                values=[""] * len(rows),
                shares={},
                dev_rows=rows[:8],
                params=params.train_sft.model_copy(update={"label_weights": {}}),
                seed=1,
                run=run,
            )
        seconds = time.monotonic() - began
        return [step["loss"] for step in read_metrics(run_folder / METRICS) if "loss" in step], seconds

    def online(self, model: Any, codec: ChatCodec, params: Params) -> tuple[list[dict[str, Any]], float]:
        """Learn online in place; the metrics of the steps, and seconds."""
        algorithm, run_folder = params.train_policy.algorithm, self._new_folder()
        sampler = self.sampler(model, codec, temperature=algorithm.temperature, params=params)
        tasks = make_domain(params.world).tasks("rl", params.world.num_rl_tasks)
        began = time.monotonic()
        with open_run(run_folder) as run:
            train_online(
                model,
                codec.tokenizer,
                TrainingInputs(tasks, PolicyEpisodes(sampler)),
                params=algorithm,
                max_context_tokens=params.agent.max_context_tokens,
                optimizer_params=params.train_policy,
                checkpoint_every_steps=10_000,
                seed=1,
                run=run,
            )
        return read_metrics(run_folder / METRICS), time.monotonic() - began

    def _new_folder(self) -> Path:
        """For one training: in a folder that it finds it would go on."""
        return Path(tempfile.mkdtemp(dir=self.folder, prefix="run-"))


def encoded(codec: ChatCodec, rows: Sequence[TrajectoryRow]) -> list[TokenRow]:
    return codec.encode_rows(row.conversation for row in rows)


def synchronised() -> float:
    """The time, once the device has done what it was given."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.monotonic()


def forget() -> None:
    """Give back what nothing holds, and count the peak of memory anew."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
