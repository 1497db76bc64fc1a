"""Plays the held-out tasks with one policy: all of them greedily, those of the test split also
`num_samples` times at temperature 1, for pass^k.

`teacher` is the world's expert without flaws, or a model behind an endpoint; every other name is a
model's folder.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from posttrain.config.params import Params
from posttrain.data.files import write_json, write_jsonl
from posttrain.data.schemas import read_tasks
from posttrain.evals.params import ExpertTeacher, OpenAiTeacher
from posttrain.evals.roles import role_summary
from posttrain.evals.summary import evaluate_policy, task_record
from posttrain.models.loading import load_codec, load_model
from posttrain.provenance.costs import processor_kind
from posttrain.provenance.runner import StageRun, run_stage
from posttrain.rollout.episode_sampler import Player, ScoredWorld, Stream, episode_seeds
from posttrain.rollout.episodes import resume_episodes, run_episodes
from posttrain.rollout.offers import OfferingDomain, tokens_of_tools
from posttrain.rollout.openai_policy import OpenAiPolicy
from posttrain.rollout.policy import expert_policy
from posttrain.runtime.endpoint_limits import ChatParameters
from posttrain.traces.values import traced
from posttrain.traces.writer import open_traces
from posttrain.tracking.wandb_tables import shown_evaluation
from posttrain.types import Split, Task, Trajectory
from posttrain.worlds.catalog import cost_names, require_expert
from posttrain.worlds.protocol import GoalDomain, StaffedDomain

TASKS = Path("data/raw/tasks.parquet")
REPORTS = Path("reports/evaluate")
REFUSED = "refused_parameters.json"  # of the teacher's endpoint; in the folder of what is kept for a later run


def evaluate(run: StageRun) -> None:
    params, settings = run.params, run.params.evaluate
    world = ScoredWorld.of(params.world, params.reward, params.agent)
    costs = cost_names(world.domain)
    wanted = world.domain.describe_goal if isinstance(world.domain, GoalDomain) else None
    folder = Path("data/models") / run.item
    codec = None if run.item == "teacher" else load_codec(folder)
    play_part = (
        _teacher(params, world, run.checkpoint_dir)
        if codec is None
        else world.player(load_model(folder, dtype=params.model.dtype), codec, seed=params.seed)
    )

    with shown_evaluation(run) as show, open_traces(run.full_name, key=run.key, params=params) as record:

        def play(tasks: Sequence[Task], temperature: float) -> Sequence[Trajectory]:
            part = "greedy" if temperature == 0 else "sampled"
            played = play_part(tasks, temperature, lambda done, total: run.progress(done, total, part))
            record(traced(played, tasks, part=part))
            return played

        splits: tuple[Split, ...] = ("test", *settings.beside)
        tasks = [task for split in splits for task in read_tasks(TASKS, split)]
        evaluated, summary = evaluate_policy(play, tasks, num_samples=settings.num_samples, by=settings.by, costs=costs)
        summary["processor"] = processor_kind()
        if isinstance(world.domain, OfferingDomain) and codec is not None:
            summary["tools"] = tokens_of_tools(codec, world.domain, tasks, [one.greedy for one in evaluated])
        if isinstance(world.domain, StaffedDomain):
            own = [one.greedy for one in evaluated if one.task.split == "test" and not one.greedy.is_aborted]
            summary["roles"] = role_summary(own, world.domain.worker_failures)
        if changed := ChatParameters(run.checkpoint_dir / REFUSED).changed:
            summary["endpoint_parameters"] = changed
        records = [task_record(one, wanted=wanted) for one in evaluated if not one.greedy.is_aborted]
        write_json(REPORTS / f"{run.item}.json", summary)
        write_jsonl(REPORTS / f"{run.item}.tasks.jsonl", records)
        show(summary, records)


def _teacher(params: Params, world: ScoredWorld, folder: Path) -> Player:
    def play(
        tasks: Sequence[Task], temperature: float, progress: Callable[[int, int], None] | None = None
    ) -> list[Trajectory]:
        seeds = episode_seeds(Stream.EVALUATION, params.seed, count=len(tasks))
        how: dict[str, Any] = {"domain": world.domain, "limits": world.limits, "seeds": seeds, "progress": progress}
        match params.evaluate.teacher:
            case ExpertTeacher():
                shown = require_expert(world.domain, needed_by="evaluate.teacher.type expert")
                played = run_episodes(expert_policy(shown, is_flawless=True, reasoning_frac=0.0), tasks, **how)
            case OpenAiTeacher() as teacher:
                policy = OpenAiPolicy(
                    teacher.model,
                    temperature=temperature,
                    max_new_tokens=teacher.max_new_tokens,
                    parameters=ChatParameters(folder / REFUSED),
                )
                played = resume_episodes(policy, tasks, folder / f"played-{temperature:g}.jsonl", **how)
        return world.reward.score_all(played, tasks)

    return play


if __name__ == "__main__":
    run_stage(evaluate)
