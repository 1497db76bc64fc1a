"""Measures peak memory and time of log-probabilities, forward and backward, by the length of a
row, for a vocabulary of 152,064 tokens.

    python -m benchmarks.logprob_memory

A model of one layer of 64 channels, so that little else takes memory; every token is scored, each
measurement is a process of its own on one thread. `ours` is `agent_logprobs`, `entropies` the same
with entropies, `ddp` within DDP's forward, `trl` TRL's fused head, `all` the softmax of all logits.
Writes `reports/logprob_memory.json`.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModelForCausalLM, Qwen2Config
from trl.trainer.utils import add_fused_lm_head

from benchmarks.footprint import memory_now, restart_peak
from posttrain.data.files import write_json
from posttrain.models.token_logprobs import agent_scores
from posttrain.provenance.costs import processor_kind

VOCABULARY = 152_064
RUNS = [(way, tokens) for tokens in (512, 2048, 8192) for way in ("ours", "trl")]
RUNS += [("all", 512), ("all", 2048), ("ddp", 2048), ("entropies", 2048)]  # 8,192 tokens' logits take 5 GB, three times


def main() -> None:
    parser = argparse.ArgumentParser("benchmarks.logprob_memory", description=__doc__)
    parser.add_argument("--run", nargs=2, metavar=("WAY", "TOKENS"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        print(json.dumps(_run(given.run[0], int(given.run[1]))))
        return
    found = []
    for way, num_tokens in RUNS:
        command = [sys.executable, "-m", "benchmarks.logprob_memory", "--run", way, str(num_tokens)]
        # what was given back is not counted: the allocator would keep pieces of it
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": str(1 << 16)}
        ran = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        found.append({"way": way, "tokens": num_tokens, **json.loads(ran.stdout.splitlines()[-1])})
        print(json.dumps(found[-1]), flush=True)
    content = {"processor": processor_kind(), "vocabulary": VOCABULARY, "runs": found}
    write_json(Path("reports/logprob_memory.json"), content)


def _run(way: str, num_tokens: int) -> dict[str, Any]:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        intermediate_size=128,
        max_position_embeddings=num_tokens,
        tie_word_embeddings=True,
    )
    model: Any = AutoModelForCausalLM.from_config(config)
    if way == "trl":
        add_fused_lm_head(model)
    if way == "ddp":
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
        torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=torch.distributed.HashStore())
        model = DistributedDataParallel(model)
    ids = torch.randint(VOCABULARY, (1, num_tokens))
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
    before, started = restart_peak(), time.process_time()
    total = _summed(way, model, ids)
    total.backward()  # type: ignore[no-untyped-call]
    return {
        "peak_mib": round((memory_now("VmHWM") - before) / 2**20, 1),
        "cpu_seconds": round(time.process_time() - started, 2),
        "sum": round(float(total), 2),
    }


def _summed(way: str, model: Any, ids: Tensor) -> Tensor:
    if way == "trl":
        fused: Tensor = model(ids, labels=ids, fused_lm_head=True).log_probs
        return fused.sum()
    if way == "all":
        logprobs = model(ids).logits[0, :-1].log_softmax(-1)
        return logprobs.gather(1, ids[0, 1:, None]).sum()
    found = agent_scores(model, ids, ids, with_entropies=way == "entropies")
    return found.logprobs.sum() if found.entropies is None else (found.logprobs + found.entropies).sum()


if __name__ == "__main__":
    main()
