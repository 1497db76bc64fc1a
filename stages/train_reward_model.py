"""A Bradley-Terry reward model on the pairs, judged on tasks that it never saw: accuracy beside two
baselines, calibration, and best of four."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from posttrain.data.files import write_json
from posttrain.data.schemas import TrajectoryRow, read_trajectories
from posttrain.models.codec import ChatCodec
from posttrain.models.loading import load_codec
from posttrain.provenance.runner import StageRun, run_stage
from posttrain.runtime.exits import DataError
from posttrain.tracking.wandb_sink import wandb_sinks
from posttrain.train.preference_pairs import Pair, group_by_task, read_pairs, token_rows
from posttrain.train.resumable_trainer import open_run
from posttrain.train.reward_model import new_reward_model, score_episodes
from posttrain.train.reward_model import train_reward_model as train
from posttrain.train.reward_model_quality import (
    best_of,
    counting_accuracy,
    expected_calibration_error,
    pair_accuracy,
    reliability,
)
from posttrain.train.trainable import save_trained

SFT = Path("data/models/sft")
PAIRS = Path("data/preferences/pairs.parquet")
NUM_CHOICES = 4  # best of four: what a deployment can afford to sample


def train_reward_model(run: StageRun) -> None:
    params, settings = run.params, run.params.train_reward_model
    groups = group_by_task(read_trajectories(Path("data/preferences/samples.parquet")))
    held_out_groups = _draw(groups, settings.holdout_frac, seed=params.seed)
    held_out_tasks = {group[0].trajectory.task_id for group in held_out_groups}
    pairs = read_pairs(PAIRS)
    seen = [pair for pair in pairs if pair.chosen.trajectory.task_id not in held_out_tasks]
    held_out = [pair for pair in pairs if pair.chosen.trajectory.task_id in held_out_tasks]
    if not seen or not held_out:
        raise DataError(
            f"{PAIRS} has {len(seen)} pairs to train on and {len(held_out)} to judge by; both are needed: "
            "raise sample_preferences.num_tasks or change train_reward_model.holdout_frac"
        )
    codec = load_codec(SFT)
    model = new_reward_model(SFT, params.model, seed=params.seed)
    chosen, rejected = (token_rows([getattr(pair, side) for pair in seen], codec) for side in ("chosen", "rejected"))
    with open_run(
        run.checkpoint_dir,
        sinks=wandb_sinks(run, run.checkpoint_dir),
        progress=run.progress,
        rows_at_once=params.model.rows_at_once,
    ) as training:
        train(
            model,
            codec.tokenizer,
            pairs=list(zip(chosen, rejected, strict=True)),
            params=settings,
            seed=params.seed,
            run=training,
        )
    if run.is_first:
        model.eval()
        write_json(
            Path("reports/train_reward_model/summary.json"), _judge(model, codec, seen, held_out, held_out_groups)
        )
        save_trained(model, codec.tokenizer, Path("data/models/reward"))


def _draw(groups: Sequence[list[TrajectoryRow]], frac: float, *, seed: int) -> list[list[TrajectoryRow]]:
    """Draw tasks with all their episodes, so that none of a task that is judged is trained on."""
    drawn = np.random.default_rng(seed).permutation(len(groups))[: round(frac * len(groups))]
    return [groups[index] for index in sorted(drawn)]


def _judge(
    model: Any,
    codec: ChatCodec,
    seen: Sequence[Pair],
    held_out: Sequence[Pair],
    held_out_groups: Sequence[list[TrajectoryRow]],
) -> dict[str, Any]:
    rows = [row for group in held_out_groups for row in group]
    scores = score_episodes(model, [row.input_ids for row in token_rows(rows, codec)])
    score_of = {row.trajectory_id: score for row, score in zip(rows, scores, strict=True)}
    margins = [score_of[pair.chosen.trajectory_id] - score_of[pair.rejected.trajectory_id] for pair in held_out]
    bins = reliability(margins)

    def by_count(count: Callable[[TrajectoryRow], int]) -> float:
        differences = ([float(count(one.chosen) - count(one.rejected)) for one in side] for side in (seen, held_out))
        return counting_accuracy(*differences)

    successes = [[row.trajectory.is_success for row in group] for group in held_out_groups]
    return {
        "num_pairs": len(seen),
        "num_held_out_pairs": len(held_out),
        "num_held_out_tasks": len(held_out_groups),
        "accuracy": pair_accuracy(margins),
        "accuracy_by_length": by_count(lambda row: len(token_rows([row], codec)[0].input_ids)),
        "accuracy_by_turns": by_count(lambda row: sum(one.role == "assistant" for one in row.trajectory.messages)),
        "calibration_error": expected_calibration_error(bins),
        "reliability": [dataclasses.asdict(found) for found in bins],
        f"best_of_{NUM_CHOICES}": best_of(
            [[score_of[row.trajectory_id] for row in group] for group in held_out_groups],
            successes,
            num_samples=NUM_CHOICES,
        ),
    }


if __name__ == "__main__":
    run_stage(train_reward_model, is_launchable=True)
