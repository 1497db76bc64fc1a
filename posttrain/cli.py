"""The console command `posttrain`: questions that a person asks outside the pipeline, answered in a line or a table.

Exit codes are those of the stages: 65 for bad data, 78 for a wrong configuration. A person waits for every import, so each command imports what it
needs, and the arguments are read by the standard library alone.
"""

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from posttrain.cli_command import add_command
from posttrain.cli_jobs import add_jobs
from posttrain.cli_traces import add_traces
from posttrain.exits import exit_codes


def app(arguments: Sequence[str] | None = None) -> None:
    """Run the command that `arguments` ask for, those of the process by default."""
    parser = argparse.ArgumentParser("posttrain", description="Questions about trajectories, runs, traces and jobs.")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    command = add_command(commands, "health", health)
    command.add_argument("file", type=Path, help="trajectories with rewards: JSONL, JSON or Parquet")
    command.add_argument("--format", dest="file_format", choices=["openai", "tau_bench"], default="openai", help="what the file holds")
    command.add_argument("--success-at", type=float, default=1.0, help="an episode with this reward or more succeeded")
    command.add_argument("--json", dest="as_json", action="store_true", help="one JSON object instead of a table")
    add_command(commands, "summary", summary)
    command = add_command(commands, "export-served", export_served)
    command.add_argument("folder", type=Path, help="a model's folder, such as data/models/sft")
    command.add_argument("target", type=Path, help="where the copy goes")
    command.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32", help="of the weights; model.dtype of the training")
    add_traces(commands)
    add_jobs(commands)
    with exit_codes():
        given = vars(parser.parse_args(arguments))
        try:
            given.pop("command")(**given)
            sys.stdout.flush()
        except BrokenPipeError:  # `| head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise SystemExit(1) from None


def health(file: Path, file_format: Literal["openai", "tau_bench"], success_at: float, as_json: bool) -> None:
    """How much would groups of these trajectories teach? Reward spread within a task, and the share of groups without any."""
    from posttrain.data.importers import import_trajectories
    from posttrain.evals.health import group_health

    metrics = group_health(import_trajectories(file, file_format), success_at=success_at, source=str(file))
    print(json.dumps(metrics, sort_keys=True, indent=2) if as_json else _table(metrics))


def summary() -> None:
    """The table of policies of the last run, and how it compares with the committed figures."""
    from posttrain.report.table import compare_with_committed, summary_table

    reports = Path("reports")
    print(f"{summary_table(reports)}\n{compare_with_committed(reports)}")


def export_served(folder: Path, target: Path, dtype: Literal["float32", "bfloat16"]) -> None:
    """Copy a model's folder as vLLM serves it for rollouts: with the output matrix written out, so that a weight update reaches it."""
    from posttrain.models.loading import load_model
    from posttrain.rollout.engines.weight_files import write_served_folder

    write_served_folder(folder, load_model(folder, dtype=dtype), target)


def _table(metrics: Mapping[str, float]) -> str:
    width = max(len(name) for name in metrics)
    return "\n".join(
        f"{name:<{width}}  {value:>10.4f}" if isinstance(value, float) else f"{name:<{width}}  {value:>10}" for name, value in metrics.items()
    )


if __name__ == "__main__":
    app()
