"""Models of 0.5B and 1.5B with random weights: tokens a second of SFT and of the engine, and their
peaks of memory."""

from collections.abc import Iterator
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig, Qwen2Config

from benchmarks.footprint import SIZES
from benchmarks.gpu.ground import Ground, forget, synchronised
from posttrain.memory_estimate.advice import LORA
from posttrain.models.distributed import device
from posttrain.models.loading import load_codec
from posttrain.models.optimizers import build_optimizer
from posttrain.models.params import PretrainedModel
from posttrain.models.precision import loaded_dtype
from posttrain.models.token_logprobs import agent_logprobs
from posttrain.rollout.episode_sampler import Stream, episode_seeds
from posttrain.train.trainable import prepared

SHAPES: dict[str, PretrainedConfig] = {
    "0.5B": SIZES["0.5B"],
    "1.5B": Qwen2Config(
        vocab_size=151936,
        hidden_size=1536,
        num_hidden_layers=28,
        num_attention_heads=12,
        num_key_value_heads=2,
        intermediate_size=8960,
        tie_word_embeddings=True,
    ),
}
ADAPTERS: dict[str, dict[str, Any]] = {"lora": LORA, "full": {"type": "full"}}
ROWS, TOKENS, NUM_STEPS = 8, 1024, 4
NUM_EPISODES, NUM_NEW = 64, 256


def find(ground: Ground) -> Iterator[dict[str, Any]]:
    for size, config in ({"10M": SIZES["10M"]} if ground.is_small else SHAPES).items():
        for adapter, knobs in ADAPTERS.items():
            params = PretrainedModel.model_validate(
                {
                    "type": "pretrained",
                    "name": size,
                    "adapter": knobs,
                    "gradient_checkpointing": True,
                    "dtype": "bfloat16",
                }
            )
            yield {"size": size, "adapter": adapter, "what": "sft", **_sft(ground, config, params)}
        yield {"size": size, "what": "play", **_play(ground, config)}


def _sft(ground: Ground, config: PretrainedConfig, params: PretrainedModel) -> dict[str, Any]:
    """SFT steps of `ROWS` rows, two at a time, every second token the agent's."""
    forget()
    rows, tokens = (2, 64) if ground.is_small else (ROWS, TOKENS)
    model = prepared(_model(config, getattr(torch, loaded_dtype(params))), params, seed=1).train()
    optimizer = build_optimizer(model, "adamw", 1e-5)
    ids = torch.randint(4, 400, (rows, tokens), device=device())
    labels = torch.where(torch.arange(tokens, device=device()) % 2 == 0, ids, -100)
    for step in range(NUM_STEPS):
        if step == 1:  # the first one warms up
            began = synchronised()
        for first in range(0, rows, 2):
            part = slice(first, first + 2)
            (-agent_logprobs(model, ids[part], labels[part]).sum() / labels.numel()).backward()
        optimizer.step()
        optimizer.zero_grad()
    seconds = (synchronised() - began) / (NUM_STEPS - 1)
    return {"tokens_per_s": round(rows * tokens / seconds), "seconds_a_step": round(seconds, 3), **_peak()}


def _play(ground: Ground, config: PretrainedConfig) -> dict[str, Any]:
    """One message of each episode, as long as it may be: random weights hardly ever end one."""
    forget()
    num_new, num_episodes = (16, 4) if ground.is_small else (NUM_NEW, NUM_EPISODES)
    params = ground.params_with({"agent.max_new_tokens": num_new, "agent.max_turns": 1})
    model, codec = _model(config, torch.bfloat16).eval(), load_codec(ground.trained)
    sampler = ground.sampler(model, codec, temperature=1.0, params=params)
    tasks = ground.domain.tasks("dev", num_episodes)
    seeds = episode_seeds(Stream.MEASUREMENT, 1, count=num_episodes)
    sampler.sample(tasks[:2], seeds[:2])  # warms up
    began = synchronised()
    played = sampler.sample(tasks, seeds)
    seconds = synchronised() - began
    written = sum(sum(one.mask) for one in played)
    return {"tokens_per_s": round(written / seconds), "episodes": num_episodes, "written": written, **_peak()}


def _model(config: PretrainedConfig, dtype: torch.dtype) -> Any:
    with torch.device(device()):
        return AutoModelForCausalLM.from_config(config, dtype=dtype)


def _peak() -> dict[str, float]:
    return {"peak_gb": round(torch.cuda.max_memory_allocated() / 1e9, 3)} if torch.cuda.is_available() else {}
