"""K episodes of each task by the SFT policy, scored; a better and a worse one of a task make a
pair, and so does each verified edit where `edit_pairs` says so, and what was imported where
`source` says so. All samples are kept beside the pairs."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from posttrain.data.edits import FOR_PAIRS, read_edits
from posttrain.data.files import write_json
from posttrain.data.preferences import (
    IMPORTED,
    Pair,
    Verdict,
    read_pairs,
    read_verdicts,
    write_pairs,
    write_verdicts,
)
from posttrain.data.schemas import TrajectoryRow, read_tasks, trajectory_row, write_trajectories
from posttrain.models.loading import load_codec, load_model
from posttrain.provenance.runner import StageRun, run_stage
from posttrain.rollout.episode_sampler import ScoredWorld, sample_groups
from posttrain.traces.values import traced
from posttrain.traces.writer import open_traces
from posttrain.train.edit_pairs import edit_pairs
from posttrain.train.params import ImportedPairs, SampledAndImportedPairs
from posttrain.train.preference_pairs import NO_PAIRS, composition, group_by_task, pairs_of

SFT = Path("data/models/sft")


def sample_preferences(run: StageRun) -> None:
    settings = run.params.sample_preferences
    imported = read_pairs(IMPORTED / "pairs.parquet")
    verdicts = read_verdicts(IMPORTED / "verdicts.parquet")
    rows: list[TrajectoryRow] = []
    own: list[Pair] = []
    about: dict[str, float] = {}
    if not isinstance(settings.source, ImportedPairs):
        rows, own, about = _sampled(run)
        verdicts += _thumbs(rows, settings.thumbs)
    if isinstance(settings.source, SampledAndImportedPairs):
        own, imported = _shared(own, imported, settings.source.import_frac)
    pairs = [*own, *imported]
    if not pairs and not verdicts:  # nobody may want any: select_policy_inputs refuses where one does
        print(f"[{run.full_name}] {NO_PAIRS}", file=sys.stderr, flush=True)
    write_trajectories(Path("data/preferences/samples.parquet"), rows)
    write_pairs(Path("data/preferences/pairs.parquet"), pairs)
    write_verdicts(Path("data/preferences/verdicts.parquet"), verdicts)
    summary = {"num_pairs": len(pairs), "num_verdicts": len(verdicts), **composition(pairs), **about}
    write_json(Path("reports/sample_preferences/summary.json"), summary)


def _sampled(run: StageRun) -> tuple[list[TrajectoryRow], list[Pair], dict[str, float]]:
    """Episodes of the SFT policy, the pairs of them and of edits, and figures of the play."""
    params, settings = run.params, run.params.sample_preferences
    tasks = read_tasks(Path("data/raw/tasks.parquet"), "rl")[: settings.num_tasks]
    world = ScoredWorld.of(params.world, params.reward, params.agent)
    model = load_model(SFT, dtype=params.model.dtype)
    sampler = world.sampler(model, load_codec(SFT), temperature=settings.temperature, takes_weights=True)
    with open_traces(run.full_name, key=run.key, params=params) as record:
        trajectories, plays = sample_groups(
            sampler, tasks, num_samples=settings.num_samples, seed=params.seed, progress=run.progress
        )
        record(traced(trajectories, plays))
    rows = [trajectory_row(one, task, world.domain.tools) for one, task in zip(trajectories, plays, strict=True)]
    pairs = pairs_of(rows, settings.pairs)
    kept = [trajectory for trajectory in trajectories if not trajectory.is_aborted]
    about = {
        "num_tasks": len(group_by_task(rows)),
        "num_samples": settings.num_samples,
        "num_ties": len(tasks) - len({pair.chosen.trajectory.task_id for pair in pairs}),
        "num_lost": len(trajectories) - len(kept),
        "success_rate": sum(played.is_success for played in kept) / len(kept),
        "strict_success_rate": sum(played.is_strict_success for played in kept) / len(kept),
        "reward_mean": sum(played.reward or 0.0 for played in kept) / len(kept),
    }
    return rows, pairs + edit_pairs(read_edits(FOR_PAIRS), world), about


def _thumbs(rows: Sequence[TrajectoryRow], which: Literal["none", "one", "all"]) -> list[Verdict]:
    groups = [[row for row in group if not row.trajectory.is_aborted] for group in group_by_task(rows)]
    drawn = [group[: {"none": 0, "one": 1}.get(which)] for group in groups]
    return [Verdict(row, row.trajectory.is_success) for group in drawn for row in group]


def _shared(own: Sequence[Pair], imported: Sequence[Pair], import_frac: float) -> tuple[list[Pair], list[Pair]]:
    """With weights by which `import_frac` of the drawn pairs are imported, where there are both."""
    if not own or not imported:
        return list(own), list(imported)
    own_weight, weight = (1 - import_frac) / sum(one.weight for one in own), import_frac / len(imported)
    shared = [replace(one, weight=own_weight * one.weight) for one in own]
    return shared, [replace(one, weight=weight) for one in imported]


if __name__ == "__main__":
    run_stage(sample_preferences)
