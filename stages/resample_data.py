"""Chooses which validated demonstrations are learnt from and grows the rare cells with new rows
that are true in the world.

The prepared model only measures: its loss on what the agent wrote ranks rows for the coreset.
Nothing here reads gold but the world itself, whose expert plays by it, and `success_filter`, the
control arm that asks what perfect filtering alone would give.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from posttrain.data.files import write_json, write_text
from posttrain.data.resampling.cells import cell_of
from posttrain.data.resampling.coreset import choose_coreset, num_kept
from posttrain.data.resampling.features import features
from posttrain.data.resampling.quality import Mistake, mistakes
from posttrain.data.resampling.realise import Realised, Rehearsal, realise
from posttrain.data.resampling.report import cells_json, count_cells, draw_classes
from posttrain.data.resampling.smote import Point, contamination, plan_points, refuse_contaminated
from posttrain.data.schemas import TrajectoryRow, read_tasks, read_trajectories, write_trajectories
from posttrain.exits import DataError
from posttrain.models.codec import TokenRow
from posttrain.models.loading import load_codec, load_model
from posttrain.models.row_losses import row_losses
from posttrain.rewards.completion import is_success
from posttrain.rollout.episodes import play_episodes
from posttrain.rollout.policy import expert_policy
from posttrain.stage.frame import StageRun, run_stage
from posttrain.traces.values import traced
from posttrain.traces.writer import open_traces
from posttrain.types import Task, Trajectory
from posttrain.worlds.domains import make_domain

BASE = Path("data/models/base")
TASKS = Path("data/raw/tasks.parquet")
SOURCE = Path("data/validated/demonstrations.parquet")
REPORTS = Path("reports/resample_data")


def resample_data(run: StageRun) -> None:
    params = run.params.resample_data
    validated = read_trajectories(SOURCE)
    codec = load_codec(BASE)
    encoded = codec.encode_rows((row.trajectory.messages, row.tools) for row in validated)

    found = [_mistakes(run, row, tokens) for row, tokens in zip(validated, encoded, strict=True)]
    own = {task.task_id: task for task in read_tasks(TASKS, "sft")}
    good = [index for index in range(len(validated)) if not (params.quality_filter and found[index])]
    if params.success_filter:
        good = [index for index in good if _is_success(validated[index], own)]
    if not good:
        raise DataError(
            f"none of the {len(validated)} demonstrations in {SOURCE} is left (visible mistakes: "
            f"{_counts(found)}): mend them, or set "
            "quality_filter and success_filter to false"
        )
    core = [
        good[index]
        for index in _coreset(
            run, [validated[index] for index in good], [encoded[index] for index in good], codec.pad_id
        )
    ]
    rows = [validated[index] for index in core]
    points = _points(run, rows)
    made = _realise(run, points, rows, own)

    write_trajectories(Path("data/resampled/demonstrations.parquet"), [*rows, *made.rows])
    cells = [cell_of(row) for row in validated]
    counts = count_cells(
        cells, [cells[index] for index in good], [cells[index] for index in core], [point.cell for point in points]
    )
    write_text(REPORTS / "classes.svg", draw_classes(counts))
    summary = {
        "num_validated": len(validated),
        "num_after_quality": len(good),
        "num_after_coreset": len(core),
        "num_realised": sum(made.is_new),
        "num_duplicated": len(points) - sum(made.is_new),
        "num_after": len(core) + len(points),
        "contamination": round(contamination(points), 6),
        "mistakes": _counts(found),
        "cells": cells_json(counts),
    }
    write_json(REPORTS / "summary.json", summary)


def _mistakes(run: StageRun, row: TrajectoryRow, tokens: TokenRow) -> tuple[Mistake, ...]:
    return mistakes(row.trajectory.messages, num_tokens=len(tokens.input_ids), limits=run.params.agent)


def _coreset(
    run: StageRun, rows: Sequence[TrajectoryRow], encoded: Sequence[TokenRow], pad_id: int
) -> NDArray[np.int64]:
    coreset = run.params.resample_data.coreset
    keep = num_kept(len(rows), coreset.keep_frac)
    if keep == len(rows):
        return np.arange(len(rows))
    losses = np.zeros(len(rows))
    if coreset.strategy in ("loss_topk", "hybrid"):
        losses = row_losses(load_model(BASE), encoded, pad_id=pad_id, progress=run.progress)
    points = (
        features(rows, seed=run.params.seed)
        if coreset.strategy in ("diversity", "hybrid")
        else np.zeros((len(rows), 1))
    )
    return choose_coreset(coreset.strategy, keep=keep, losses_N=losses, features_N_D=points, seed=run.params.seed)


def _points(run: StageRun, rows: Sequence[TrajectoryRow]) -> list[Point]:
    oversample = run.params.resample_data.oversample
    if oversample.type == "none":
        return []
    points = plan_points(
        oversample.type,
        features(rows, seed=run.params.seed),
        [cell_of(row) for row in rows],
        target_frac=oversample.target_frac,
        num_neighbors=oversample.num_neighbors,
        seed=run.params.seed,
    )
    refuse_contaminated(points, max_contamination=oversample.max_contamination)
    return points


def _is_success(row: TrajectoryRow, tasks: Mapping[str, Task]) -> bool:
    """By the task's gold; an imported demonstration has none and is taken at its reward."""
    task = tasks.get(row.trajectory.task_id)
    return is_success(row.trajectory, task) if task else row.trajectory.reward == 1


def _realise(
    run: StageRun, points: Sequence[Point], rows: Sequence[TrajectoryRow], own: Mapping[str, Task]
) -> Realised:
    """With `smote` the points' demonstrations are played anew, without flaws where only successes
    are wanted; with `duplicate` they are the drawn rows themselves."""
    params = run.params
    if params.resample_data.oversample.type != "smote":
        return Realised([rows[point.seeds[0]] for point in points], [False] * len(points))
    domain = make_domain(params.world)
    flaws = None if params.resample_data.success_filter else params.generate_data.flaw_rates
    expert = expert_policy(domain, flaws=flaws, reasoning_frac=params.generate_data.reasoning_frac)

    held_out = [task for task in read_tasks(TASKS) if task.split != "sft"]
    with open_traces(run.full_name, key=run.key, params=params) as record:

        def replay(tasks: Sequence[Task], seeds: Sequence[int]) -> list[Trajectory]:
            played = play_episodes(expert, tasks, domain=domain, limits=params.agent, seeds=seeds)
            record(traced(played, tasks))
            return played

        return realise(points, Rehearsal(rows, own, domain, replay, held_out), seed=params.seed)


def _counts(found: Sequence[tuple[Mistake, ...]]) -> dict[str, int]:
    """Demonstrations with each mistake; one with two counts under both."""
    return dict(sorted(Counter(str(mistake) for those in found for mistake in those).items()))


if __name__ == "__main__":
    run_stage(resample_data)
