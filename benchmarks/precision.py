"""Whether bfloat16 learns what float32 learns: 50 steps of supervised fine-tuning, from one start
and on the same rows, with products in either.

    python -m benchmarks.precision [--tree .posttrain/pretrained] [--steps 50] [--to FILE]

Reads the demonstrations of a tree's last `dvc repro resample_data`, and what `prepare_model` made:
of a pretrained model the model, as that tree trains it, else the tokenizer, for a decoder of ten
million weights.
A step's difference is that of the two losses over float32's; each is of other noise, so the mean
says more than the largest.
"""

import argparse
import copy
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from posttrain.algorithms.resumable import METRICS, open_run
from posttrain.algorithms.sft import train_sft
from posttrain.algorithms.trainable import load_trainable
from posttrain.data.files import write_json
from posttrain.data.schemas import read_trajectories
from posttrain.data.trajectories import unlearnt
from posttrain.models.codec import TokenRow
from posttrain.models.loading import load_codec, load_whole, save_model
from posttrain.models.scratch import scratch_model
from posttrain.params import Dtype, ScratchModel, TrainSftParams, load_params
from posttrain.stage.processor import processor_kind
from posttrain.tracking.metrics_log import read_metrics

BASE, DEMONSTRATIONS = Path("data/models/base"), Path("data/resampled/demonstrations.parquet")
SIZE = {"hidden_size": 256, "num_layers": 10, "num_heads": 4, "num_kv_heads": 4, "head_dim": 64, "mlp_size": 1024}
DTYPES: tuple[Dtype, ...] = ("float32", "bfloat16")
BATCH, LR, MAX_DIFFERENCE = 4, 1e-3, 0.01


def main() -> None:
    parser = argparse.ArgumentParser("benchmarks.precision", description=__doc__)
    parser.add_argument("--tree", type=Path, default=Path())
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--to", type=Path, default=Path("reports/precision.json"))
    given = parser.parse_args()
    params, base = load_params(given.tree / "params.yaml"), given.tree / BASE
    codec = load_codec(base)
    steps = {"max_steps": given.steps, "eval_every_steps": given.steps}
    knobs = params.train_sft.model_copy(update={**steps, "batch_size": BATCH, "lr": LR, "optimizer": "adamw"})
    read = read_trajectories(given.tree / DEMONSTRATIONS, "sft")[: BATCH * given.steps]
    rows = codec.encode_rows([(row.trajectory.messages, row.tools, unlearnt(row.trajectory)) for row in read])
    with tempfile.TemporaryDirectory() as scratch:
        model, folder = params.model, base
        if isinstance(model, ScratchModel):
            model, folder = ScratchModel.model_validate(model.model_dump() | SIZE), Path(scratch) / "model"
            start = scratch_model(
                model, tokenizer=codec.tokenizer, max_context_tokens=params.agent.max_context_tokens, seed=params.seed
            )
            save_model(start, copy.deepcopy(codec.tokenizer), folder)
        num_weights = sum(weight.numel() for weight in load_whole(folder).parameters())
        curves = {
            dtype: losses(
                load_trainable(folder, model.model_copy(update={"dtype": dtype}), seed=0),
                codec.tokenizer,
                rows,
                knobs,
                Path(scratch) / dtype,
            )
            for dtype in DTYPES
        }
    exact, rounded = (np.array(curves[dtype]) for dtype in ("float32", "bfloat16"))
    differences = np.abs(rounded - exact) / exact
    found = {
        "processor": processor_kind(),
        "weights": num_weights,
        "steps": given.steps,
        "losses": curves,
        "difference_mean": float(differences.mean()),
        "difference_max": float(differences.max()),
        "is_within_1_percent": bool(differences.max() <= MAX_DIFFERENCE),
    }
    write_json(given.to, found)
    print(f"{num_weights / 1e6:.1f}M weights, {given.steps} steps, loss {exact[0]:.3f} to {exact[-1]:.3f}; in bfloat16")
    print(f"{rounded[-1]:.3f}: it differs by {differences.mean():.2%} on average, {differences.max():.2%} at most")


def losses(learner: Any, tokenizer: Any, rows: list[TokenRow], params: TrainSftParams, to: Path) -> list[float]:
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
            seed=0,
            run=run,
        )
    return [float(line["loss"]) for line in read_metrics(to / METRICS) if "loss" in line]


if __name__ == "__main__":
    main()
