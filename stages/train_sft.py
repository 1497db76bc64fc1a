"""Supervised fine-tuning of the prepared model on the resampled demonstrations; the weights of the
lowest dev loss are kept.

The dev demonstrations are the world's expert, without flaws, on the dev tasks: other companies than
any training row's.
"""

import shutil
from pathlib import Path

from posttrain.algorithms.resumable import METRICS, open_run
from posttrain.algorithms.sft import train_sft as train
from posttrain.algorithms.trainable import load_trainable, save_trained
from posttrain.data.schemas import read_tasks, read_trajectories
from posttrain.models.loading import load_codec
from posttrain.rollout.demonstrations import demonstrate
from posttrain.stage.frame import StageRun, run_stage
from posttrain.traces.values import traced
from posttrain.traces.writer import open_traces
from posttrain.tracking.wandb_sink import wandb_sinks
from posttrain.worlds.domains import make_domain

BASE = Path("data/models/base")


def train_sft(run: StageRun) -> None:
    params = run.params
    demonstrations = read_trajectories(Path("data/resampled/demonstrations.parquet"))
    dev_tasks = read_tasks(Path("data/raw/tasks.parquet"), "dev")
    reasoning_frac = params.generate_data.reasoning_frac
    with open_traces(run.full_name, key=run.key, params=params) as record:
        dev = demonstrate(
            make_domain(params.world),
            dev_tasks,
            limits=params.agent,
            seed=params.seed,
            flaws=None,
            reasoning_frac=reasoning_frac,
        )
        record(traced([row.trajectory for row in dev], dev_tasks))

    codec = load_codec(BASE)
    rows, dev_rows = (
        codec.encode_rows((row.trajectory.messages, row.tools) for row in split) for split in (demonstrations, dev)
    )
    model = load_trainable(BASE, params.model, seed=params.seed)
    with open_run(run.checkpoint_dir, sinks=wandb_sinks(run), progress=run.progress) as training:
        kinds = [row.kind for row in demonstrations]
        train(
            model,
            codec.tokenizer,
            rows=rows,
            kinds=kinds,
            dev_rows=dev_rows,
            params=params.train_sft,
            seed=params.seed,
            run=training,
        )
    if run.is_first:
        save_trained(model, codec.tokenizer, Path("data/models/sft"))
        report = Path("reports/train_sft") / METRICS
        report.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(run.checkpoint_dir / METRICS, report)


if __name__ == "__main__":
    run_stage(train_sft, is_launchable=True)
