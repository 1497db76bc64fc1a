"""Holds micro-batches of a number of tokens against micro-batches of a number of rows, on rows of
50 to 2,000 tokens: the share of padding, the time of a step, and how unequal processes' shares are.

    python -m benchmarks.token_budget

SFT of a model of 0.6M weights on this machine's processor, 32 rows a step, lengths log-uniform. The
limit in tokens is that of the largest micro-batch of four rows, so both take as much memory; both
train on the same steps, on one thread. Writes `reports/token_budget.json`.
"""

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen2Config

from posttrain.data.files import write_json
from posttrain.models.codec import CALL, TokenRow
from posttrain.models.micro_batches import AtOnce, dealt
from posttrain.provenance.costs import processor_kind
from posttrain.tracking.metrics_log import read_metrics
from posttrain.train.params import TrainSftParams
from posttrain.train.resumable_trainer import METRICS, open_run
from posttrain.train.sample_order import weighted_order
from posttrain.train.sft import train_sft

SHORTEST, LONGEST, ROWS_PER_STEP, NUM_STEPS, ROWS_AT_ONCE, SEED = 50, 2000, 32, 3, 4, 1
WAYS = {"rows": AtOnce(ROWS_AT_ONCE), "tokens": AtOnce(tokens=ROWS_AT_ONCE * LONGEST)}
VOCABULARY = 2000


def main() -> None:
    rng = np.random.default_rng(SEED)
    lengths = np.exp(rng.uniform(np.log(SHORTEST), np.log(LONGEST), ROWS_PER_STEP * NUM_STEPS)).astype(int)
    rows = [_row(int(length), rng) for length in lengths]
    runs = [{"way": way, **_trained(rows, WAYS[way])} for way in WAYS]
    for one in runs:
        print(json.dumps(one), flush=True)
    losses = [one.pop("losses") for one in runs]
    found = {
        "processor": processor_kind(),
        "rows_per_step": ROWS_PER_STEP,
        "largest_micro_batch_tokens": ROWS_AT_ONCE * LONGEST,
        "runs": runs,
        "largest_gap_of_losses": max(abs(one - losses[0][place]) for own in losses for place, one in enumerate(own)),
        "busiest_process_over_mean": [_shares(lengths, count) for count in (2, 4, 8)],
    }
    print(json.dumps(found["busiest_process_over_mean"]))
    write_json(Path("reports/token_budget.json"), found)


def _row(length: int, rng: np.random.Generator) -> TokenRow:
    mask = (rng.random(length) < 1 / 3).astype(int).tolist()
    return TokenRow(rng.integers(2, VOCABULARY, length).tolist(), mask, [CALL * one for one in mask])


def _trained(rows: list[TokenRow], at_once: AtOnce) -> dict[str, Any]:
    torch.manual_seed(SEED)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=384,
        max_position_embeddings=LONGEST,
    )
    model: Any = AutoModelForCausalLM.from_config(config)
    num_rows, num_padded = 0, 0

    def count(_module: object, _given: object, named: dict[str, Any]) -> None:
        nonlocal num_rows, num_padded
        num_rows, num_padded = num_rows + 1, num_padded + named["input_ids"].numel()

    model.base_model.register_forward_pre_hook(count, with_kwargs=True)
    params = TrainSftParams.model_validate(KNOBS)
    times = [time.process_time()]
    with (
        tempfile.TemporaryDirectory() as folder,
        open_run(Path(folder), progress=lambda *_: times.append(time.process_time()), at_once=at_once) as run,
    ):
        how = {"values": [""] * len(rows), "shares": {}, "dev_rows": [], "params": params, "seed": SEED, "run": run}
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer(WordLevel({"<pad>": 0}, unk_token="<pad>")),
            pad_token="<pad>",
            eos_token="<pad>",
        )
        train_sft(model, tokenizer, rows=rows, **how)
        losses = [line["loss"] for line in read_metrics(Path(folder) / METRICS)]
    used = weighted_order([""] * len(rows), {"": 1.0}, count=NUM_STEPS * ROWS_PER_STEP, seed=SEED)
    num_tokens = sum(len(rows[place].input_ids) for place in used)
    return {
        "micro_batches_per_step": round(num_rows / NUM_STEPS, 2),
        "padding": round(1 - num_tokens / num_padded, 4),
        "cpu_seconds_per_step": round((times[-1] - times[1]) / (NUM_STEPS - 1), 2),  # the first one warms up
        "losses": losses,
    }


def _shares(lengths: np.ndarray[Any, Any], count: int) -> dict[str, float]:
    """Tokens of the process that has the most of a step, over the mean: rows by falling length
    shared out in turn of their order, as without a limit in tokens, and dealt."""
    ratios = []
    for own in np.sort(lengths.reshape(NUM_STEPS, -1), axis=1)[:, ::-1]:
        dealt_out = [own[places].sum() for places in dealt(ROWS_PER_STEP, count)]
        ratios.append([max(part.sum() for part in np.split(own, count)), max(dealt_out)] / (own.sum() / count))
    in_order, by_tokens = np.mean(ratios, axis=0)
    return {"processes": count, "in_order": round(float(in_order), 3), "dealt": round(float(by_tokens), 3)}


KNOBS = {
    "max_steps": NUM_STEPS,
    "batch_size": ROWS_PER_STEP,
    "lr": 1e-3,
    "lr_warmup_frac": 0.1,
    "optimizer": "adamw",
    "label_weights": {},
    "eval_every_steps": NUM_STEPS,
    "early_stopping_patience": 3,
    "edit_copies": 0,
}

if __name__ == "__main__":
    main()
