"""Stage `generate_data`: makes the world's tasks of every split, and demonstrations of the sft
tasks: by the scripted expert with its flaws, by a model behind an endpoint, or from a file.

The demonstrations have no goal and no reward; only `success_filter`, a control arm, reads their
outcome.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from posttrain.data.files import write_jsonl
from posttrain.data.importing.demonstrations import match_world_tools, split_off_dev
from posttrain.data.importing.importer import import_trajectories, quarantined, refuse_too_many_bad, unread_keys
from posttrain.data.importing.records import BadRecord
from posttrain.data.params import ImportSource, OpenAiSource, ScriptedSource
from posttrain.data.schemas import TrajectoryRow, trajectory_row, write_tasks, write_trajectories
from posttrain.provenance.runner import StageRun, run_stage
from posttrain.rollout.episodes import demonstrate, resume_episodes
from posttrain.rollout.offers import open_domain
from posttrain.rollout.openai_policy import OpenAiPolicy
from posttrain.rollout.paraphrase import paraphrased
from posttrain.runtime.endpoint_limits import ChatParameters
from posttrain.traces.values import traced
from posttrain.traces.writer import open_traces
from posttrain.worlds.catalog import require_expert, splits_of, tasks_of
from posttrain.worlds.protocol import Domain

RAW = Path("data/raw")


def generate_data(run: StageRun) -> None:
    domain = open_domain(run.params.world, run.params.agent)
    tasks = {split: tasks_of(domain, split, run.params.world) for split in splits_of(domain)}
    params = run.params.generate_data
    if params.paraphrase:
        folder = run.checkpoint_dir / "paraphrases"
        tasks["sft"], num = paraphrased(tasks["sft"], params.paraphrase, seed=run.params.seed, folder=folder)
        print(f"{num} paraphrases were refused, and their tasks keep their own words", file=sys.stderr, flush=True)
    bad: Sequence[BadRecord] = ()
    match params.source:
        case ScriptedSource():
            with open_traces(run.full_name, key=run.key, params=run.params) as record:
                rows = demonstrate(
                    require_expert(domain, needed_by="generate_data.source.type scripted"),
                    tasks["sft"],
                    limits=run.params.agent,
                    seed=run.params.seed,
                    is_flawless=False,
                    reasoning_frac=params.reasoning_frac,
                    progress=run.progress,
                )
                record(traced([row.trajectory for row in rows], tasks["sft"]))
        case OpenAiSource() as source:
            policy = OpenAiPolicy(
                source.model,
                temperature=source.temperature,
                max_new_tokens=source.max_new_tokens,
                parameters=ChatParameters(run.checkpoint_dir / "refused_parameters.json"),
            )
            sft, seeds = tasks["sft"], [run.params.seed] * len(tasks["sft"])
            with open_traces(run.full_name, key=run.key, params=run.params) as record:
                file = run.checkpoint_dir / "played.jsonl"
                played = resume_episodes(
                    policy, sft, file, domain=domain, limits=run.params.agent, seeds=seeds, progress=run.progress
                )
                record(traced(played, sft))
            rows = [
                trajectory_row(trajectory, task, domain.tools) for trajectory, task in zip(played, sft, strict=True)
            ]
        case ImportSource() as source:
            rows, bad = _imported(run, source, domain)
    write_jsonl(RAW / "quarantine.jsonl", quarantined(bad))
    write_tasks(RAW / "tasks.parquet", [task for own in tasks.values() for task in own])
    write_trajectories(RAW / "demonstrations.parquet", rows)


def _imported(run: StageRun, source: ImportSource, domain: Domain) -> tuple[list[TrajectoryRow], list[BadRecord]]:
    """The rows of a file, split into sft and dev, and its bad records."""
    params, path = run.params, Path(source.path)
    accepted = params.validate_data.max_quarantine_frac
    ends = [name for name, tool in domain.tools.items() if tool.ends_episode]
    imported = import_trajectories(path, source.format, stop_tools=[*source.stop_tools, *ends])
    write_jsonl(RAW / "quarantine.jsonl", quarantined(imported.bad))  # before the next lines may stop the run
    if unread := unread_keys(imported.unread):
        print(f"{path}: {unread}", file=sys.stderr, flush=True)
    refuse_too_many_bad(imported, max_quarantine_frac=accepted, source=path)
    imported = match_world_tools(imported, domain.tools, world=params.world.type, max_other_frac=accepted)
    rows = [
        # token ids are those of the recording model's tokenizer, and ours may be another
        replace(row, trajectory=replace(row.trajectory, token_ids=(), mask=(), logprobs=()))
        for row in imported.rows
    ]
    return split_off_dev(rows, source.dev_frac), imported.bad


if __name__ == "__main__":
    run_stage(generate_data)
