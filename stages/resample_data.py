"""Stage `resample_data`: filters validated demonstrations, selects a coreset, and oversamples rare
cells with new episodes.

Only the world's expert reads goals, and only `success_filter`, a control arm, reads outcomes. The
file is read in batches, anew for each step; of a demonstration only its cell, mistakes, loss and
feature vector are kept.
"""

import itertools
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from posttrain.data.files import ParquetBatches, write_batches, write_json
from posttrain.data.resampling.cells import count_cells, opening_text
from posttrain.data.resampling.coreset import Selected, choose_coreset, features, lexical_diversity, num_kept, number_of
from posttrain.data.resampling.quality import Mistake, keeper, refuse_too_many_dropped
from posttrain.data.resampling.regenerate import NewRows, ReplayContext, regenerate
from posttrain.data.resampling.smote import Point, contamination, plan_points, refuse_contaminated
from posttrain.data.schemas import TRAJECTORIES_SCHEMA, TrajectoryRow, read_tasks, rows_from_table, trajectories_table
from posttrain.models.codec import ChatCodec
from posttrain.models.loading import load_codec, load_model
from posttrain.models.row_losses import row_losses
from posttrain.provenance.runner import StageRun, run_stage
from posttrain.rollout.demonstration_scan import ScanRules, scan_batch
from posttrain.rollout.episodes import run_episodes
from posttrain.rollout.offers import open_domain
from posttrain.rollout.policy import expert_policy
from posttrain.runtime.batch_workers import map_batches
from posttrain.runtime.exits import DataError
from posttrain.traces.values import traced
from posttrain.traces.writer import open_traces
from posttrain.types import Split, Task, Trajectory
from posttrain.worlds.catalog import require_expert, require_regeneration
from posttrain.worlds.protocol import Domain

BASE = Path("data/models/base")
TASKS = Path("data/raw/tasks.parquet")
SOURCE = Path("data/validated/demonstrations.parquet")
REPORTS = Path("reports/resample_data")
SMOTE = "resample_data.oversample.type smote"
POINTS_AT_ONCE = 8192  # their source rows are held in memory


@dataclass(slots=True)
class _Scan:
    """Results of one pass over the file: the cells of all rows, the positions of the sft rows
    (`validated`) with their mistakes, and the positions of the rows that pass the filters, of sft
    and of dev."""

    cells: list[str] = field(default_factory=list)
    validated: list[int] = field(default_factory=list)
    found: list[tuple[Mistake, ...]] = field(default_factory=list)
    good: list[int] = field(default_factory=list)
    good_dev: list[int] = field(default_factory=list)

    @property
    def mistakes(self) -> dict[str, int]:
        """Number of sft rows with each mistake."""
        return dict(sorted(Counter(str(mistake) for those in self.found for mistake in those).items()))


def resample_data(run: StageRun) -> None:
    params = run.params.resample_data
    domain = open_domain(run.params.world, run.params.agent)
    scan = _scan(run, domain)
    if params.quality_filter:
        refuse_too_many_dropped(scan.found, max_dropped_frac=params.max_dropped_frac, source=SOURCE)
    if not scan.good:
        raise DataError(
            f"none of the {len(scan.validated)} demonstrations in {SOURCE} is left (visible mistakes: "
            f"{scan.mistakes}): mend them, or set quality_filter and success_filter to false"
        )
    good = Selected(SOURCE, np.array(scan.good, np.int64))
    core = good.at(_coreset(run, good))
    core_cells = [scan.cells[position] for position in core.positions_N]
    points = _points(run, core, core_cells)
    dev = Selected(SOURCE, np.array(scan.good_dev, np.int64))
    num_new = _write(Path("data/resampled/demonstrations.parquet"), core, _new_rows(run, points, core, domain), dev)

    counts = count_cells(
        [scan.cells[position] for position in scan.validated],
        [scan.cells[position] for position in scan.good],
        core_cells,
        [point.cell for point in points],
    )
    summary = {
        "num_validated": len(scan.validated),
        "num_after_quality": len(good),
        "num_after_coreset": len(core),
        "num_realised": num_new,
        "num_duplicated": len(points) - num_new,
        "num_after": len(core) + len(points),
        "contamination": round(contamination(points), 6),
        "mistakes": scan.mistakes,
        "cells": counts,
    }
    write_json(REPORTS / "summary.json", summary)


def _scan(run: StageRun, domain: Domain) -> _Scan:
    params, scan = run.params.resample_data, _Scan()
    rewards = (one for batch in ParquetBatches(SOURCE, TRAJECTORIES_SCHEMA, ("reward",)) for one in batch["reward"])
    is_kept = keeper(params.keep, (one.as_py() for one in rewards))
    read_only = frozenset(name for name, tool in domain.tools.items() if tool.is_read_only)
    rules = ScanRules(BASE.resolve(), params, run.params.agent, read_only, is_kept)
    batches = map_batches(scan_batch, rules, ParquetBatches(SOURCE, TRAJECTORIES_SCHEMA))
    for position, row in enumerate(itertools.chain.from_iterable(batches)):
        scan.cells.append(sys.intern(row.cell))
        if not row.is_dev:
            scan.validated.append(position)
            scan.found.append(row.mistakes)
        if row.is_good:
            (scan.good_dev if row.is_dev else scan.good).append(position)
    return scan


def _coreset(run: StageRun, good: Selected) -> NDArray[np.int64]:
    coreset = run.params.resample_data.coreset
    keep = num_kept(len(good), coreset.keep_frac)
    if keep == len(good):
        return np.arange(len(good))
    points = (
        features(good, seed=run.params.seed)
        if coreset.strategy in ("diversity", "hybrid")
        else np.zeros((len(good), 1))
    )
    losses_N = _ranks(run, good) if coreset.strategy in ("loss_topk", "hybrid") else np.zeros(len(good))
    return choose_coreset(coreset.strategy, keep=keep, losses_N=losses_N, features_N_D=points, seed=run.params.seed)


def _ranks(run: StageRun, good: Selected) -> NDArray[np.float64]:
    """The number by which demonstrations are preferred, (N,)."""
    rank_by, codec = run.params.resample_data.coreset.rank_by, load_codec(BASE)
    if rank_by == "loss":
        return _losses(run, good, codec)
    ranks = list[float]()
    for rows in map(rows_from_table, good.tables()):
        if rank_by in ("num_tokens", "lexical_diversity"):
            encoded = codec.encode_rows(row.conversation for row in rows)
            ranks += [len(one.input_ids) if rank_by == "num_tokens" else lexical_diversity(one) for one in encoded]
        else:
            ranks += [number_of(row, rank_by) for row in rows]
    return np.array(ranks)


def _losses(run: StageRun, good: Selected, codec: ChatCodec) -> NDArray[np.float64]:
    model = load_model(BASE, dtype=run.params.model.dtype)
    losses_N = np.empty(len(good))
    num_done = 0

    def progress(done: int, _: int) -> None:
        run.progress(num_done + done, len(good))

    for table in good.tables():
        encoded = codec.encode_rows(row.conversation for row in rows_from_table(table))
        end = num_done + len(encoded)
        losses_N[num_done:end] = row_losses(model, encoded, pad_id=codec.pad_id, progress=progress)
        num_done = end
    return losses_N


def _points(run: StageRun, core: Selected, cells: Sequence[str]) -> list[Point]:
    oversample = run.params.resample_data.oversample
    if oversample.type == "none":
        return []
    points = plan_points(
        oversample.type,
        features(core, seed=run.params.seed),
        cells,
        target_frac=oversample.target_frac,
        num_neighbors=oversample.num_neighbors,
        seed=run.params.seed,
    )
    refuse_contaminated(points, max_contamination=oversample.max_contamination)
    return points


def _new_rows(run: StageRun, points: Sequence[Point], core: Selected, domain: Domain) -> Iterator[NewRows]:
    """The rows of the points, `POINTS_AT_ONCE` at a time: with `smote` new episodes, without flaws
    where only successes are wanted; with `duplicate` the drawn rows themselves."""
    params = run.params
    starts = range(0, len(points), POINTS_AT_ONCE)
    if params.resample_data.oversample.type != "smote":
        for start in starts:
            some, rows = _with_rows(points[start : start + POINTS_AT_ONCE], core)
            yield NewRows([rows[point.seeds[0]] for point in some], [False] * len(some))
        return
    expert = expert_policy(
        require_expert(domain, needed_by=SMOTE),
        is_flawless=params.resample_data.success_filter,
        reasoning_frac=params.generate_data.reasoning_frac,
    )
    new_tasks = require_regeneration(domain, needed_by=SMOTE)
    held_out = read_tasks(TASKS, *(split for split in get_args(Split) if split != "sft"))
    asked = {opening_text(messages) for messages in core}
    with open_traces(run.full_name, key=run.key, params=params) as record:

        def replay(tasks: Sequence[Task], seeds: Sequence[int]) -> list[Trajectory]:
            played = run_episodes(expert, tasks, domain=domain, limits=params.agent, seeds=seeds)
            record(traced(played, tasks))
            return played

        for start in starts:
            some, rows = _with_rows(points[start : start + POINTS_AT_ONCE], core)
            ids = {row.trajectory.task_id for row in rows}
            own = {task.task_id: task for task in read_tasks(TASKS, "sft", ids=ids)}
            context = ReplayContext(rows, own, new_tasks, replay, held_out, asked)
            made = regenerate(some, context, seed=params.seed + start)
            asked |= {opening_text(row.trajectory.messages) for row in made.rows}
            yield made


def _with_rows(points: Sequence[Point], core: Selected) -> tuple[list[Point], list[TrajectoryRow]]:
    """The points with seeds that index the rows returned beside them."""
    places = np.unique(np.array([seed for point in points for seed in point.seeds], np.int64))
    rows = core.at(places).rows()
    return [replace(point, seeds=tuple(np.searchsorted(places, point.seeds).tolist())) for point in points], rows


def _write(path: Path, core: Selected, made: Iterator[NewRows], dev: Selected) -> int:
    """Write the coreset, the added rows and the dev rows; return how many of the added are new."""
    num_new = 0

    def added() -> Iterator[pa.Table]:
        nonlocal num_new
        for some in made:
            num_new += sum(some.is_new)
            yield trajectories_table(some.rows)

    write_batches(path, itertools.chain(core.tables(), added(), dev.tables()), TRAJECTORIES_SCHEMA)
    return num_new


if __name__ == "__main__":
    run_stage(resample_data)
