"""K episodes of each task by the SFT policy, scored; a better and a worse one of a task make a
pair, and so does each verified edit where `edit_pairs` says so. All samples are kept beside the
pairs."""

from pathlib import Path

from posttrain.data.edits import FOR_PAIRS, read_edits
from posttrain.data.files import write_json
from posttrain.data.schemas import read_tasks, trajectory_row, write_trajectories
from posttrain.models.loading import load_codec, load_model
from posttrain.provenance.runner import StageRun, run_stage
from posttrain.rollout.episode_sampler import ScoredWorld, sample_groups
from posttrain.traces.values import traced
from posttrain.traces.writer import open_traces
from posttrain.train.edit_pairs import edit_pairs
from posttrain.train.preference_pairs import composition, group_by_task, pairs_of, refuse_no_pairs, write_pairs

SFT = Path("data/models/sft")


def sample_preferences(run: StageRun) -> None:
    params, settings = run.params, run.params.sample_preferences
    tasks = read_tasks(Path("data/raw/tasks.parquet"), "rl")[: settings.num_tasks]
    world = ScoredWorld.of(params.world, params.reward, params.agent)
    model = load_model(SFT, dtype=params.model.dtype)
    sampler = world.sampler(model, load_codec(SFT), temperature=settings.temperature)
    with open_traces(run.full_name, key=run.key, params=params) as record:
        trajectories, plays = sample_groups(
            sampler, tasks, num_samples=settings.num_samples, seed=params.seed, progress=run.progress
        )
        record(traced(trajectories, plays))
    rows = [trajectory_row(one, task, world.domain.tools) for one, task in zip(trajectories, plays, strict=True)]
    pairs = pairs_of(rows, settings.pairs)
    num_sampled = len(pairs)
    pairs += edit_pairs(read_edits(FOR_PAIRS), world)
    refuse_no_pairs(pairs, num_tasks=len(tasks), num_samples=settings.num_samples)
    write_trajectories(Path("data/preferences/samples.parquet"), rows)
    write_pairs(Path("data/preferences/pairs.parquet"), pairs)
    kept = [trajectory for trajectory in trajectories if not trajectory.is_aborted]
    summary = {
        "num_tasks": len(group_by_task(rows)),
        "num_samples": settings.num_samples,
        "num_pairs": len(pairs),
        "num_ties": len(tasks) - num_sampled,
        **composition(pairs),
        "num_lost": len(trajectories) - len(kept),
        "success_rate": sum(played.is_success for played in kept) / len(kept),
        "strict_success_rate": sum(played.is_strict_success for played in kept) / len(kept),
        "reward_mean": sum(played.reward or 0.0 for played in kept) / len(kept),
    }
    write_json(Path("reports/sample_preferences/summary.json"), summary)


if __name__ == "__main__":
    run_stage(sample_preferences)
