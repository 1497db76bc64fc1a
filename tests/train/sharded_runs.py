"""Trainings of sharded models: episodes that a server plays, and the memory of what is held and
written."""

import asyncio
import copy
import os
from dataclasses import replace
from pathlib import Path

import torch
import two_policies
from tiny import play_words

from posttrain.config.params import load_params
from posttrain.models import distributed
from posttrain.models.loading import load_model, save_model
from posttrain.models.lora import add_lora, merge_adapters
from posttrain.models.optimizers import build_optimizer
from posttrain.models.params import LoraAdapter
from posttrain.models.precision import computing_in, frozen_copy
from posttrain.models.scratch import scratch_model
from posttrain.models.sharding import sharded
from posttrain.models.token_logprobs import agent_logprobs
from posttrain.rollout.engines.choice import make_engine
from posttrain.rollout.engines.protocol import GenerateRequest
from posttrain.rollout.engines.weight_files import write_weights
from posttrain.train.sharded_state import load_shards, save_shards
from posttrain.train.trainable import load_trainable, save_trained
from posttrain.types import Outcome, ScoredEpisode, Turn
from tests.rollout.tiny_models import tiny_model

PROMPTS = [[10 + index, 3, 5, index % 60] for index in range(20)]
END = 1
ARCHITECTURE = os.environ.get("TINY_ARCHITECTURE", "qwen3")


def server_model(*, is_adapted):
    """The structure of the token server's, with adapters its weights, too."""
    lora = LoraAdapter(type="lora", r=2, alpha=4, dropout=0.0, target_modules=["q_proj", "down_proj"])
    return add_lora(tiny_model(ARCHITECTURE, seed=99), lora, seed=1) if is_adapted else tiny_model(ARCHITECTURE, seed=1)


class ServedWords:
    """The episodes of `WordEpisodes`, written by a server, one after another; each even word earns
    half a point."""

    is_elsewhere = True

    def __init__(self, model):
        self._model, self._engine, self._shape = model, None, tiny_model(ARCHITECTURE)

    def refresh(self):
        if self._engine is None:
            how = {"max_context_tokens": 64, "check_prompts": lambda: PROMPTS, "stop_ids": frozenset({END})}
            self._engine = make_engine(self._model, **how)
        else:
            self._engine.refresh_weights()

    def sleep(self): ...

    def run(self, tasks, seeds, *, prefix_fracs=()):
        return asyncio.run(self._play(tasks, seeds, temperature=1.0))

    def play_greedily(self, tasks):
        self.refresh()
        return asyncio.run(self._play(tasks, range(len(tasks)), temperature=0.0))

    def refuse_many_aborted(self, episodes): ...

    async def _play(self, tasks, seeds, *, temperature):
        return [await self._one(task, seed, temperature) for task, seed in zip(tasks, seeds, strict=True)]

    async def _one(self, task, seed, temperature):
        ids, logprobs, words = [2, *map(int, task.task_id.split())], [0.0] * 3, []
        for _ in range(2):
            ids, logprobs = [*ids, 2], [*logprobs, 0.0]
            request = GenerateRequest(f"{task.task_id} {seed}", ids, 1, temperature, seed, frozenset({END}))
            written = await self._engine.generate(request)
            ids, logprobs, words = [*ids, *written.token_ids], [*logprobs, *written.logprobs], [*words, ids[-1]]
        reward = sum(ids[place] % 2 == 0 for place in (4, 6)) / 2
        told = {"logprobs": logprobs, "mask": [0, 0, 0, 0, 1, 0, 1], "turns": (Turn(4, 1, 0, 1), Turn(1, 1, 0, 3))}
        told |= {"reward": reward, "outcome": Outcome(reward == 1, reward == 1), "token_ids": ids}
        played = play_words(self._shape, task, seed, given=(4, 4)).trajectory
        return ScoredEpisode(replace(played, **told))


def large_section():
    return load_params().model.model_copy(update={"hidden_size": 384, "num_layers": 24, "mlp_size": 1536})


def write_large_model(folder):
    """Writes a model of some 200 MB; returns its bytes."""
    tokenizer = two_policies.codec().tokenizer
    model = scratch_model(large_section(), tokenizer=tokenizer, max_context_tokens=64, seed=1)
    save_model(model, tokenizer, folder)
    return sum(weight.nbytes for weight in model.parameters())


def run_held(run, _):
    """What each process comes to hold at most, in bytes more than before, in each of the steps from
    loading the folder `model` to writing `trained`; a line for each process."""
    found, kept, tokenizer = {}, {}, two_policies.codec().tokenizer

    def step(name, compute):
        Path("/proc/self/clear_refs").write_text("5")
        before = _status("VmRSS")
        kept[name] = compute()
        found[name] = _status("VmHWM") - before

    step("load", lambda: load_trainable(Path("model"), large_section(), seed=1))
    model = kept["load"]
    step("reference", lambda: frozen_copy(model))
    optimizer = build_optimizer(model, "adamw", 1e-3)
    ids = torch.arange(8)[None] + 4
    agent_logprobs(model, ids, ids).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    step("write", lambda: write_weights(model, Path("served")))
    if distributed.is_first():
        Path("kept").mkdir()
    distributed.wait_for_all()
    step("save", lambda: save_shards(Path("kept"), model, optimizer))
    step("resume", lambda: load_shards(Path("kept"), model, optimizer))
    step("trained", lambda: save_trained(model, tokenizer, Path("trained")))
    for rank, of_process in enumerate(distributed.gather(found)):
        if run.metrics is not None:
            run.metrics.write(rank + 1, of_process)


def run_merged(run, _):
    """Writes a model in shards with adapters, computed in either type; `gap` is to it whole."""
    tokenizer = two_policies.codec().tokenizer
    lora = LoraAdapter(type="lora", r=2, alpha=4, dropout=0.0, target_modules=["q_proj", "down_proj"])
    for step, dtype in enumerate(("float32", "bfloat16"), 1):
        model = add_lora(computing_in(two_policies.make_model().to(getattr(torch, dtype)), dtype), lora, seed=1)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                weight.add_(torch.linspace(0, 0.1, weight.numel()).view_as(weight) if "lora_" in name else 0)
        expected = dict(merge_adapters(copy.deepcopy(model)).named_parameters())
        save_trained(sharded(model), tokenizer, Path(dtype))
        distributed.wait_for_all()
        found = dict(load_model(Path(dtype)).named_parameters())
        assert found.keys() == expected.keys()
        gap = max(float((weight - expected[name]).detach().abs().max()) for name, weight in found.items())
        if run.metrics is not None:
            run.metrics.write(step, {"gap": gap})


def _status(name):
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024
