"""Plays the held-out tasks with one policy: all of them greedily, those of the test split also
`num_samples` times at temperature 1, for pass^k.

`teacher` is the world's expert without flaws, or a model behind an endpoint; every other name is a
model's folder.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from posttrain.config.params import Params
from posttrain.data.files import write_json, write_jsonl
from posttrain.data.schemas import read_tasks
from posttrain.evals.params import ExpertTeacher, OpenAiTeacher
from posttrain.evals.summary import evaluated_tasks, summarise, task_record
from posttrain.models.loading import load_codec, load_model
from posttrain.provenance.costs import processor_kind
from posttrain.provenance.runner import StageRun, run_stage
from posttrain.rewards.total import load_reward
from posttrain.rollout.episode_sampler import EpisodeSampler, Stream, episode_seeds
from posttrain.rollout.episodes import run_episodes
from posttrain.rollout.openai_policy import OpenAiPolicy
from posttrain.rollout.policy import expert_policy
from posttrain.rollout.resume import resume_episodes
from posttrain.runtime.endpoint_limits import ChatParameters
from posttrain.traces.values import traced
from posttrain.traces.writer import open_traces
from posttrain.tracking.wandb_tables import shown_evaluation
from posttrain.types import Task, Trajectory
from posttrain.worlds.catalog import make_domain, require_expert, score_names
from posttrain.worlds.protocol import Domain, GoalDomain

TASKS = Path("data/raw/tasks.parquet")
REPORTS = Path("reports/evaluate")
REFUSED = "refused_parameters.json"  # of the teacher's endpoint; in the folder of what is kept for a later run

Progress = Callable[[int, int], None]
Play = Callable[[Sequence[Task], float, Progress], list[Trajectory]]  # tasks, temperature → scored episodes


def evaluate(run: StageRun) -> None:
    params, settings = run.params, run.params.evaluate
    domain = make_domain(params.world)
    wanted = domain.describe_goal if isinstance(domain, GoalDomain) else None
    test, paraphrase = read_tasks(TASKS, "test"), read_tasks(TASKS, "test_paraphrase")
    play = (
        _teacher(params, domain, run.checkpoint_dir)
        if run.item == "teacher"
        else _model(Path("data/models") / run.item, params, domain)
    )

    tasks = [*test, *paraphrase]
    plays = [task for task in test for _ in range(settings.num_samples)]
    with shown_evaluation(run) as show, open_traces(run.full_name, key=run.key, params=params) as record:
        greedy = play(tasks, 0.0, lambda done, total: run.progress(done, total, "greedy"))
        record(traced(greedy, tasks, part="greedy"))
        sampled = play(plays, 1.0, lambda done, total: run.progress(done, total, "sampled"))
        record(traced(sampled, plays, part="sampled"))

        evaluated = evaluated_tasks(tasks, greedy, sampled, num_samples=settings.num_samples)
        summary = {
            **summarise(evaluated, num_samples=settings.num_samples, by=settings.by),
            "processor": processor_kind(),
        }
        if changed := ChatParameters(run.checkpoint_dir / REFUSED).changed:
            summary["endpoint_parameters"] = changed
        records = [task_record(one, wanted=wanted) for one in evaluated if not one.greedy.is_aborted]
        write_json(REPORTS / f"{run.item}.json", summary)
        write_jsonl(REPORTS / f"{run.item}.tasks.jsonl", records)
        show(summary, records)


def _teacher(params: Params, domain: Domain, folder: Path) -> Play:
    reward, limits = load_reward(params.reward, score_names(domain)), params.agent

    def play(tasks: Sequence[Task], temperature: float, progress: Progress) -> list[Trajectory]:
        seeds = episode_seeds(Stream.EVALUATION, params.seed, count=len(tasks))
        match params.evaluate.teacher:
            case ExpertTeacher():
                shown = require_expert(domain, needed_by="evaluate.teacher.type expert")
                expert = expert_policy(shown, is_flawless=True, reasoning_frac=0.0)
                played = run_episodes(expert, tasks, domain=domain, limits=limits, seeds=seeds, progress=progress)
            case OpenAiTeacher() as teacher:
                policy = OpenAiPolicy(
                    teacher.model,
                    temperature=temperature,
                    max_new_tokens=teacher.max_new_tokens,
                    parameters=ChatParameters(folder / REFUSED),
                )
                file = folder / f"played-{temperature:g}.jsonl"
                played = resume_episodes(
                    policy, tasks, file, domain=domain, limits=limits, seeds=seeds, progress=progress
                )
        return [reward.score(trajectory, task) for trajectory, task in zip(played, tasks, strict=True)]

    return play


def _model(folder: Path, params: Params, domain: Domain) -> Play:
    reward = load_reward(params.reward, score_names(domain))
    model, codec = load_model(folder, dtype=params.model.dtype), load_codec(folder)

    def play(tasks: Sequence[Task], temperature: float, progress: Progress) -> list[Trajectory]:
        sampler = EpisodeSampler(
            model, codec, domain=domain, reward=reward, limits=params.agent, temperature=temperature
        )
        return sampler.sample(tasks, episode_seeds(Stream.EVALUATION, params.seed, count=len(tasks)), progress=progress)

    return play


if __name__ == "__main__":
    run_stage(evaluate)
