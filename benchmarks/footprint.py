"""Holds what `posttrain plan --gpu` says of a stage's memory against the peak of a process that
runs it, on this machine's processor; of several processes, through gloo, the last. (The first reads
the model whole before it is cut.)

    python -m benchmarks.footprint [--sizes 10M,135M,0.5B] [--adapters full,lora] [--stages sft,...]
        [--dtype bfloat16] [--processes 4 --launch infra/accelerate/fsdp.yaml]

Random weights of three shapes (0.5B and 135M are Qwen2.5's and SmolLM2's), rows as long as the
knobs allow, one row a part. What a process holds before it has a model (Python, PyTorch, TRL) is in
both sums, as it was measured. Writes `reports/footprint.json`.
"""

import argparse
import gc
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig, Qwen2Config, Qwen3Config

from benchmarks.arms import REPOSITORY, SMALL, apply_overrides
from posttrain.config.params import Params
from posttrain.data.files import write_json
from posttrain.memory_estimate.advice import LORA
from posttrain.memory_estimate.processes import Processes
from posttrain.memory_estimate.stages import stage_memory
from posttrain.models import distributed
from posttrain.models.codec import CALL, TokenRow
from posttrain.models.loading import load_codec, save_model
from posttrain.models.params import Dtype, OptimizerParams
from posttrain.models.tokenizer import train_tokenizer
from posttrain.provenance.costs import processor_kind
from posttrain.rewards.total import load_reward
from posttrain.rollout.episode_sampler import EpisodeSampler
from posttrain.rollout.episodes import demonstrate
from posttrain.runtime.plain_yaml import read_yaml
from posttrain.train.on_pairs import train_on_pairs
from posttrain.train.online.learning import PolicyEpisodes
from posttrain.train.online.loop import train_online
from posttrain.train.online.params import OnlineParams
from posttrain.train.online.trainer_state import TrainingInputs
from posttrain.train.pair_training import PairTraining
from posttrain.train.policy_params import DpoParams
from posttrain.train.resumable_trainer import open_run
from posttrain.train.reward_model import new_reward_model, train_reward_model
from posttrain.train.sft import train_sft
from posttrain.train.trainable import load_trainable
from posttrain.worlds.catalog import make_domain, require_expert, score_names

WIDTH = 512  # tokens of a row
NUM_EPISODES = 8  # of a step; as many slots of the engine are used
SIZES: dict[str, PretrainedConfig] = {
    "10M": Qwen3Config(
        vocab_size=4000,
        hidden_size=256,
        num_hidden_layers=10,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=64,
        intermediate_size=1024,
        tie_word_embeddings=True,
    ),
    "135M": Qwen2Config(
        vocab_size=49152,
        hidden_size=576,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        intermediate_size=1536,
        tie_word_embeddings=True,
    ),
    "0.5B": Qwen2Config(
        vocab_size=151936,
        hidden_size=896,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        intermediate_size=4864,
        tie_word_embeddings=True,
    ),
}
STAGES = {"sft": "train_sft", "reward": "train_reward_model", "dpo": "train_policy", "grpo": "train_policy"}
ADAPTERS = {"full": {"type": "full"}, "lora": LORA}
# one row a part, and an episode that its one message fills
KNOBS: dict[str, Any] = {
    "agent.max_context_tokens": WIDTH,
    "agent.max_new_tokens": WIDTH - 32,
    "agent.max_turns": 1,
    "validate_data.max_tokens": WIDTH,
    "train_sft.batch_size": 4,
    "train_sft.max_steps": 4,
    "train_sft.eval_every_steps": 4,
    "train_sft.optimizer": "adamw",
    "train_sft.label_weights": {},
    "train_reward_model.batch_size": 4,
    "train_reward_model.max_steps": 2,
    "train_reward_model.checkpoint_every_steps": 2,
    "train_policy.optimizer": "adamw",
    "train_policy.checkpoint_every_steps": 2,
    "world.num_rl_tasks": 16,
}
# with KL in the loss there is something to learn from episodes of equal rewards, too
ONLINE = {**SMALL["train_policy.algorithm"], "kl": {"type": "loss", "weight": 0.1}}
DPO = {"type": "dpo", "max_steps": 2, "batch_size": 4, "beta": 0.5, "loss": "sigmoid"}


def main() -> None:
    parser = argparse.ArgumentParser("benchmarks.footprint", description=__doc__)
    parser.add_argument("--sizes", default=",".join(SIZES))
    parser.add_argument("--adapters", default=",".join(ADAPTERS))
    parser.add_argument("--stages", default=",".join(STAGES))
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--launch", type=Path, default=Path("infra/accelerate/ddp.yaml"))
    parser.add_argument("--to", type=Path, default=Path("reports/footprint.json"))
    parser.add_argument("--run", nargs=4, metavar=("STAGE", "PARAMS", "MODEL", "FOLDER"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        stage, params, model, own = given.run
        _run(stage, read_params(Path(params)), Path(model), Path(own))
        return
    chosen = [getattr(given, name).split(",") for name in ("sizes", "adapters", "stages")]
    found, processes = [], Processes.of(given.launch, count=given.processes, servers=0)
    with tempfile.TemporaryDirectory() as folder:
        for size, adapter, stage in itertools.product(*chosen):
            found.append(_compared(size, adapter, stage, given.dtype, Path(folder), processes, given.launch))
            print(json.dumps(found[-1]), flush=True)
    how = {"processes": given.processes, "launch": given.launch.stem} if given.processes > 1 else {}
    write_json(given.to, {"processor": processor_kind(), "width": WIDTH, "dtype": given.dtype, **how, "runs": found})


def _compared(
    size: str, adapter: str, stage: str, dtype: Dtype, folder: Path, processes: Processes, launch: Path
) -> dict[str, Any]:
    """A run and its plan, in GB."""
    params_yaml, model = folder / "params.yaml", folder / size
    write_params(params_yaml, adapter, stage, size, dtype)
    params = read_params(params_yaml)
    num_slots = NUM_EPISODES // processes.count
    planned = stage_memory(STAGES[stage], params, SIZES[size], num_slots=num_slots, processes=processes)
    if not model.exists():
        make_model(SIZES[size], params, model)
    own = Path(tempfile.mkdtemp(dir=folder))  # of all processes
    command = [sys.executable, "-m", "benchmarks.footprint", "--run", stage, *map(str, (params_yaml, model, own))]
    if processes.count > 1:
        launcher = ["-m", "posttrain.provenance.launcher", "--config_file", str(launch)]
        command[1:2] = [*launcher, "--num_processes", str(processes.count), "-m"]
    # what was given back is not counted: the allocator would keep pieces of it
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "MALLOC_MMAP_THRESHOLD_": str(1 << 16)}
    ran = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    measured = json.loads(next(line for line in ran.stdout.splitlines() if line.startswith('{"before"')))
    before, peak = measured["before"] / 1e9, measured["peak"] / 1e9
    expected = before + planned.total / 1e9
    return {
        "size": size,
        "adapter": adapter,
        "stage": stage,
        "before": round(before, 3),
        "planned": {name: round(value / 1e9, 3) for name, value in sorted(planned.parts.items())},
        "expected": round(expected, 3),
        "measured": round(peak, 3),
        "error": round(expected / peak - 1, 4),
        "error_without_before": round((expected - before) / (peak - before) - 1, 4),
    }


def write_params(path: Path, adapter: str, stage: str, size: str, dtype: Dtype) -> None:
    """Params in the form that the run and its plan read."""
    path.write_text((REPOSITORY / "params.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    model = {
        "type": "pretrained",
        "name": size,
        "adapter": ADAPTERS[adapter],
        "gradient_checkpointing": False,
        "dtype": dtype,
    }
    small = {key: value for key, value in SMALL.items() if key.split(".")[0] in ("world", "resample_data", "evaluate")}
    policy = {"train_policy.algorithm": DPO if stage == "dpo" else ONLINE}
    apply_overrides(path, {**small, **KNOBS, **policy, "model": model})


def read_params(path: Path) -> Params:
    return Params.model_validate(read_yaml(path))


def make_model(config: PretrainedConfig, params: Params, folder: Path) -> None:
    """Random weights, with a tokenizer that the world's conversations fit."""
    shown = demonstrate(
        require_expert(make_domain(params.world), needed_by="a tokenizer"),
        make_domain(params.world).tasks("sft", 64),
        limits=params.agent,
        seed=0,
        is_flawless=True,
        reasoning_frac=0.0,
    )
    conversations = [row.trajectory.messages for row in shown]
    names = {tool["function"]["name"] for row in shown for tool in row.tools}
    tokenizer = train_tokenizer(conversations, tool_names=names, vocab_size=1000, max_length=WIDTH)
    config.pad_token_id, config.eos_token_id = tokenizer.pad_token_id, tokenizer.eos_token_id
    save_model(AutoModelForCausalLM.from_config(config), tokenizer, folder)


def _run(stage: str, params: Params, folder: Path, own: Path) -> None:
    before = restart_peak()
    run_stage(stage, params, folder, own)
    if distributed.index() == distributed.count() - 1:
        print(json.dumps({"before": before, "peak": memory_now("VmHWM")}), flush=True)


def run_stage(stage: str, params: Params, folder: Path, own: Path) -> None:
    """A few steps of a stage with the model of a folder; checkpoints go to `own`."""
    codec = load_codec(folder)
    with open_run(own) as run:
        common: dict[str, Any] = {"seed": 0, "run": run}
        rows = [_row(params, seed) for seed in range(8)]
        pairs = [(rows[place], rows[-1 - place]) for place in range(4)]
        if stage == "reward":
            model = held(new_reward_model(folder, params.model, seed=0))
            train_reward_model(model, codec.tokenizer, pairs=pairs, params=params.train_reward_model, **common)
        else:
            model = held(load_trainable(folder, params.model, seed=0))
        if stage == "sft":
            data: dict[str, Any] = {"values": [""] * 8, "shares": {}, "dev_rows": rows[:4], "params": params.train_sft}
            train_sft(model, codec.tokenizer, rows=rows, **data, **common)
        optimizer = OptimizerParams(lr=1e-3, optimizer=params.train_policy.optimizer)
        how = {"optimizer_params": optimizer, "checkpoint_every_steps": 2, **common}
        if isinstance(algorithm := params.train_policy.algorithm, DpoParams):
            train_on_pairs(PairTraining(model, codec.tokenizer, pairs, **how), algorithm)
        elif stage == "grpo" and isinstance(algorithm, OnlineParams):
            domain = make_domain(params.world)
            reward = load_reward(params.reward, score_names(domain))
            sampler = EpisodeSampler(model, codec, domain=domain, reward=reward, limits=params.agent, temperature=1.0)
            setup = TrainingInputs(domain.tasks("rl", 16), PolicyEpisodes(sampler))
            train_online(model, codec.tokenizer, setup, params=algorithm, max_context_tokens=WIDTH, **how)


def held(model: Any) -> Any:
    """All of the model in memory, as a card has it: weights are mapped from their file, and of a
    frozen embedding without a head only the rows of tokens that occur would ever be read."""
    for weight in model.parameters():
        weight.detach().sum()
    return model


def _row(params: Params, seed: int) -> TokenRow:
    num_written = min(params.agent.max_turns * params.agent.max_new_tokens, WIDTH - 1)
    ids = torch.randint(4, 400, (WIDTH,), generator=torch.Generator().manual_seed(seed)).tolist()
    mask = [0] * (WIDTH - num_written) + [1] * num_written
    return TokenRow(ids, mask, [CALL * one for one in mask])


def restart_peak() -> int:
    """The bytes that are held now, from which on the peak is counted."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return memory_now("VmRSS")


def memory_now(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    assert found is not None
    return int(found[1]) * 1024


if __name__ == "__main__":
    main()
