"""Whether bfloat16 learns what float32 learns: 50 steps of supervised fine-tuning, from one start
and on the same rows, with products in either, at several learning rates.

    python -m benchmarks.precision [--tree .posttrain/pretrained] [--lr 1e-4 …] [--seeds N]
        [--published]

Reads the demonstrations of a tree's last `dvc repro resample_data`, and what `prepare_model` made:
of a pretrained model the model, as that tree trains it, else the tokenizer, for a decoder of ten
million weights. A seed draws that decoder, or the adapters, and the order of the rows.
`--published` rounds that decoder to bfloat16 first, as most models are published.
A step's difference is that of the two losses over float32's.
"""

import argparse
import copy
import itertools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from posttrain.config.params import Params, load_params
from posttrain.data.files import write_json
from posttrain.data.schemas import read_trajectories
from posttrain.models.codec import ChatCodec, TokenRow
from posttrain.models.loading import load_codec, save_model
from posttrain.models.params import Dtype, ScratchModel
from posttrain.models.scratch import scratch_model
from posttrain.provenance.cpu_kind import processor_kind
from posttrain.tracking.metrics_log import read_metrics
from posttrain.train.params import TrainSftParams
from posttrain.train.resumable_trainer import METRICS, open_run
from posttrain.train.sft import train_sft
from posttrain.train.trainable import load_trainable

BASE, DEMONSTRATIONS = Path("data/models/base"), Path("data/resampled/demonstrations.parquet")
SIZE = {"hidden_size": 256, "num_layers": 10, "num_heads": 4, "num_kv_heads": 4, "head_dim": 64, "mlp_size": 1024}
DTYPES: tuple[Dtype, ...] = ("float32", "bfloat16")
BATCH, STEPS, MAX_DIFFERENCE = 4, 50, 0.01
RATES = (1e-4, 3e-4, 1e-3)


def main() -> None:
    parser = argparse.ArgumentParser("benchmarks.precision", description=__doc__)
    parser.add_argument("--tree", type=Path, default=Path())
    parser.add_argument("--lr", type=float, nargs="+", default=RATES)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--published", action="store_true")
    parser.add_argument("--to", type=Path, default=Path("reports/precision.json"))
    given = parser.parse_args()
    params, base = load_params(given.tree / "params.yaml"), given.tree / BASE
    codec = load_codec(base)
    read = read_trajectories(given.tree / DEMONSTRATIONS, "sft")[: BATCH * STEPS]
    rows = codec.encode_rows(row.conversation for row in read)
    found = []
    for rate, seed in itertools.product(given.lr, range(given.seeds)):
        curves = curves_of(params, base, codec, rows, rate=rate, seed=seed, is_published=given.published)
        exact, rounded = (np.array(curves[dtype]) for dtype in ("float32", "bfloat16"))
        differences = np.abs(rounded - exact) / exact
        found.append(
            {
                "lr": rate,
                "seed": seed,
                "losses": curves,
                "difference_mean": float(differences.mean()),
                "difference_max": float(differences.max()),
                "is_within_1_percent": bool(differences.max() <= MAX_DIFFERENCE),
            }
        )
        print(
            f"lr {rate:g}, seed {seed}: loss {exact[0]:.3f} to {exact[-1]:.3f}, in bfloat16 {rounded[-1]:.3f}; "
            f"{differences.mean():.2%} apart on average, {differences.max():.2%} at most",
            flush=True,
        )
        write_json(given.to, {"processor": processor_kind(), "model": params.model.type, "curves": found})


def curves_of(
    params: Params, base: Path, codec: ChatCodec, rows: list[TokenRow], *, rate: float, seed: int, is_published: bool
) -> dict[str, list[float]]:
    """By the type of products, the loss of each step."""
    own = {"max_steps": STEPS, "eval_every_steps": STEPS, "batch_size": BATCH, "lr": rate, "optimizer": "adamw"}
    model, knobs = params.model, params.train_sft.model_copy(update=own)
    with tempfile.TemporaryDirectory() as scratch:
        folder = base
        if isinstance(model, ScratchModel):
            model, folder = ScratchModel.model_validate(model.model_dump() | SIZE), Path(scratch) / "model"
            start = scratch_model(
                model, tokenizer=codec.tokenizer, max_context_tokens=params.agent.max_context_tokens, seed=seed
            )
            if is_published:
                start = start.bfloat16().float()
            save_model(start, copy.deepcopy(codec.tokenizer), folder)
        return {
            dtype: losses(
                load_trainable(folder, model.model_copy(update={"dtype": dtype}), seed=seed),
                codec.tokenizer,
                rows,
                knobs,
                Path(scratch) / dtype,
                seed=seed,
            )
            for dtype in DTYPES
        }


def losses(
    learner: Any, tokenizer: Any, rows: list[TokenRow], params: TrainSftParams, to: Path, *, seed: int
) -> list[float]:
    """Of each step, by `train_sft`."""
    with open_run(to) as run:
        values = [""] * len(rows)
        train_sft(
            learner,
            tokenizer,
            rows=rows,
            values=values,
            shares={},
            dev_rows=rows[:BATCH],
            params=params,
            seed=seed,
            run=run,
        )
    return [float(line["loss"]) for line in read_metrics(to / METRICS) if "loss" in line]


if __name__ == "__main__":
    main()
