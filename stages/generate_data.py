"""Makes the world's tasks of every split, and demonstrations of the sft tasks: by the scripted
expert with its flaws, by a model behind an endpoint, or from a team's own file.

The demonstrations carry neither gold nor scores: what is made of them must not know which of them
succeeded.
"""

from pathlib import Path

from posttrain.data.importers import import_trajectories
from posttrain.data.schemas import trajectory_row, write_tasks, write_trajectories
from posttrain.exits import ConfigurationError
from posttrain.params import ImportSource, OpenAiSource, ScriptedSource, WorldParams
from posttrain.rollout.demonstrations import demonstrate
from posttrain.rollout.openai_policy import OpenAiPolicy
from posttrain.rollout.resumed import play_resumably
from posttrain.stage.frame import StageRun, run_stage
from posttrain.traces.values import traced
from posttrain.traces.writer import open_traces
from posttrain.types import SPLITS, Split, Task
from posttrain.worlds.domains import make_domain
from posttrain.worlds.protocol import Domain

RAW = Path("data/raw")


def generate_data(run: StageRun) -> None:
    domain = make_domain(run.params.world)
    tasks = {split: _tasks(domain, split, run.params.world) for split in SPLITS}
    params = run.params.generate_data
    match params.source:
        case ScriptedSource():
            with open_traces(run.full_name, key=run.key, params=run.params) as record:
                rows = demonstrate(
                    domain,
                    tasks["sft"],
                    limits=run.params.agent,
                    seed=run.params.seed,
                    flaws=params.flaw_rates,
                    reasoning_frac=params.reasoning_frac,
                    progress=run.progress,
                )
                record(traced([row.trajectory for row in rows], tasks["sft"]))
        case OpenAiSource() as source:
            policy = OpenAiPolicy(source.model, temperature=source.temperature, max_new_tokens=source.max_new_tokens)
            sft, seeds = tasks["sft"], [run.params.seed] * len(tasks["sft"])
            with open_traces(run.full_name, key=run.key, params=run.params) as record:
                file = run.checkpoint_dir / "played.jsonl"
                played = play_resumably(
                    policy, sft, file, domain=domain, limits=run.params.agent, seeds=seeds, progress=run.progress
                )
                record(traced(played, sft))
            rows = [
                trajectory_row(trajectory, task, domain.tools) for trajectory, task in zip(played, sft, strict=True)
            ]
        case ImportSource() as source:
            rows = import_trajectories(Path(source.path), source.format)
    write_tasks(RAW / "tasks.parquet", [task for split in SPLITS for task in tasks[split]])
    write_trajectories(RAW / "demonstrations.parquet", rows)


def _tasks(domain: Domain, split: Split, world: WorldParams) -> list[Task]:
    """As many as params.yaml says; the paraphrased split is as large as the test."""
    knob = f"num_{split.removesuffix('_paraphrase')}_tasks"
    try:
        return domain.tasks(split, getattr(world, knob))
    except ValueError as error:
        raise ConfigurationError(
            f"world.{knob} is {getattr(world, knob)}, which the world {world.type} cannot give: {error}"
        ) from error


if __name__ == "__main__":
    run_stage(generate_data)
