"""The console command `posttrain`: questions that a person asks outside the pipeline, answered in a line or a table.

Exit codes are those of the stages: 65 for bad data, 78 for a wrong configuration. What a command needs is imported in it: a person waits for it.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import typer

from posttrain import cli_traces
from posttrain.exits import exit_codes

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.add_typer(cli_traces.app, name="traces")


@app.command()
def health(
    file: Annotated[Path, typer.Argument(help="trajectories with rewards: JSONL, JSON or Parquet")],
    file_format: Annotated[Literal["openai", "tau_bench"], typer.Option("--format", help="what the file holds")] = "openai",
    success_at: Annotated[float, typer.Option(help="an episode with this reward or more succeeded")] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object instead of a table")] = False,
) -> None:
    """How much would groups of these trajectories teach? Reward spread within a task, and the share of groups without any."""
    from posttrain.data.importers import import_trajectories
    from posttrain.evals.health import group_health

    with exit_codes():
        metrics = group_health(import_trajectories(file, file_format), success_at=success_at, source=str(file))
        print(json.dumps(metrics, sort_keys=True, indent=2) if as_json else _table(metrics))


@app.command()
def summary() -> None:
    """The table of policies of the last run, and how it compares with the committed figures."""
    from posttrain.report.table import compare_with_committed, summary_table

    with exit_codes():
        reports = Path("reports")
        print(f"{summary_table(reports)}\n{compare_with_committed(reports)}")


@app.command()
def export_served(
    folder: Annotated[Path, typer.Argument(help="a model's folder, such as data/models/sft")],
    target: Annotated[Path, typer.Argument(help="where the copy goes")],
    dtype: Annotated[Literal["float32", "bfloat16"], typer.Option(help="of the weights; model.dtype of the training")] = "float32",
) -> None:
    """Copy a model's folder as vLLM serves it for rollouts: with the output matrix written out, so that a weight update reaches it."""
    with exit_codes():
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
