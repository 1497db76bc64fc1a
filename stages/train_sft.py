"""Supervised fine-tuning of the prepared model on the resampled demonstrations; the weights of the
lowest dev loss are kept.

The dev demonstrations are the imported ones that were kept back; where there are none, the world's
expert, without flaws, on the dev tasks: about other things than any training row.
"""

import shutil
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

from posttrain.data.edits import FOR_SFT, read_edits
from posttrain.data.schemas import TrajectoryRow, read_tasks, read_trajectories
from posttrain.models.loading import load_codec
from posttrain.models.params import at_once_of
from posttrain.provenance.runner import StageRun, run_stage
from posttrain.rollout.episodes import demonstrate
from posttrain.rollout.memory import window_rows
from posttrain.rollout.offers import open_domain
from posttrain.traces.values import traced
from posttrain.traces.writer import open_traces
from posttrain.tracking.wandb_sink import wandb_sinks
from posttrain.train.resumable_trainer import METRICS, open_run
from posttrain.train.sft import fine_tune
from posttrain.train.trainable import load_trainable, save_trained
from posttrain.worlds.catalog import require_expert
from posttrain.worlds.protocol import Domain

BASE, RESAMPLED = Path("data/models/base"), Path("data/resampled/demonstrations.parquet")


def train_sft(run: StageRun) -> None:
    params = run.params
    read = read_trajectories(RESAMPLED)
    demonstrations = [row for row in read if row.split != "dev"]
    world = cache(partial(open_domain, params.world, params.agent))
    if edits := read_edits(FOR_SFT):
        demonstrations += [edit.sft_row(world().tools) for edit in edits] * params.train_sft.edit_copies
    dev = [row for row in read if row.split == "dev"] or _played(run, world)

    demonstrations, dev = (
        [one for row in rows for one in window_rows(row, params.agent.memory)] for rows in (demonstrations, dev)
    )
    codec, is_by_adapter = load_codec(BASE), params.train_sft.learn == "separate_adapters"
    model = load_trainable(BASE, params.model, seed=params.seed, has_second_adapter=is_by_adapter)
    with open_run(
        run.checkpoint_dir,
        sinks=wandb_sinks(run, run.checkpoint_dir),
        progress=run.progress,
        at_once=at_once_of(params.model),
    ) as training:
        fine_tune(model, codec, demonstrations, dev, params=params.train_sft, seed=params.seed, run=training)
    save_trained(model, codec.tokenizer, Path("data/models/sft"))
    if run.is_first:
        report = Path("reports/train_sft") / METRICS
        report.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(run.checkpoint_dir / METRICS, report)


def _played(run: StageRun, world: Callable[[], Domain]) -> list[TrajectoryRow]:
    params, dev_tasks = run.params, read_tasks(Path("data/raw/tasks.parquet"), "dev")
    with open_traces(run.full_name, key=run.key, params=params) as record:
        dev = demonstrate(
            require_expert(
                world(),
                needed_by="the dev loss of train_sft (or generate_data.source.dev_frac above 0)",
            ),
            dev_tasks,
            limits=params.agent,
            seed=params.seed,
            is_flawless=True,
            reasoning_frac=params.generate_data.reasoning_frac,
        )
        record(traced([row.trajectory for row in dev], dev_tasks))
    return dev


if __name__ == "__main__":
    run_stage(train_sft, is_launchable=True)
