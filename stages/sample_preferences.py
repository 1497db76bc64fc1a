"""K episodes of each task by the SFT policy, scored; a better and a worse one of a task make a
pair. All samples are kept beside the pairs."""

from pathlib import Path

from posttrain.data.files import write_json
from posttrain.data.schemas import read_tasks, trajectory_row, write_trajectories
from posttrain.models.loading import load_codec, load_model
from posttrain.provenance.runner import StageRun, run_stage
from posttrain.rewards.total import load_reward
from posttrain.rollout.episode_sampler import EpisodeSampler, Stream, episode_seeds
from posttrain.runtime.exits import DataError
from posttrain.traces.values import traced
from posttrain.traces.writer import open_traces
from posttrain.train.preference_pairs import composition, group_by_task, pairs_of, write_pairs
from posttrain.worlds.catalog import make_domain, score_names

SFT = Path("data/models/sft")


def sample_preferences(run: StageRun) -> None:
    params, settings = run.params, run.params.sample_preferences
    tasks = read_tasks(Path("data/raw/tasks.parquet"), "rl")[: settings.num_tasks]
    domain = make_domain(params.world)
    model = load_model(SFT, dtype=params.model.dtype)
    sampler = EpisodeSampler(
        model,
        load_codec(SFT),
        domain=domain,
        reward=load_reward(params.reward, score_names(domain)),
        limits=params.agent,
        temperature=settings.temperature,
    )
    plays = [task for task in tasks for _ in range(settings.num_samples)]
    with open_traces(run.full_name, key=run.key, params=params) as record:
        trajectories = sampler.sample(
            plays, episode_seeds(Stream.PREFERENCES, params.seed, count=len(plays)), progress=run.progress
        )
        record(traced(trajectories, plays))
    rows = [
        trajectory_row(trajectory, task, domain.tools) for trajectory, task in zip(trajectories, plays, strict=True)
    ]
    pairs = pairs_of(rows, settings.pairs)
    if not pairs:
        raise DataError(
            f"all {settings.num_samples} episodes of each of {len(tasks)} tasks earned the same: "
            "there is nothing to prefer. "
            "Raise sample_preferences.temperature or num_samples, or take harder tasks (world.max_difficulty)"
        )
    write_trajectories(Path("data/preferences/samples.parquet"), rows)
    write_pairs(Path("data/preferences/pairs.parquet"), pairs)
    kept = [trajectory for trajectory in trajectories if not trajectory.is_aborted]
    summary = {
        "num_tasks": len(group_by_task(rows)),
        "num_samples": settings.num_samples,
        "num_pairs": len(pairs),
        "num_ties": len(tasks) - len(pairs),
        **composition(pairs),
        "num_lost": len(trajectories) - len(kept),
        "success_rate": sum(played.is_success for played in kept) / len(kept),
        "strict_success_rate": sum(played.is_strict_success for played in kept) / len(kept),
        "reward_mean": sum(played.reward or 0.0 for played in kept) / len(kept),
    }
    write_json(Path("reports/sample_preferences/summary.json"), summary)


if __name__ == "__main__":
    run_stage(sample_preferences)
