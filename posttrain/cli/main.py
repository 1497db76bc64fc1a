"""The console command `posttrain`: questions that a person asks outside the pipeline, answered in a
line or a table.

Exit codes are those of the stages: 65 for bad data, 78 for a wrong configuration. A person waits
for every import, so each command imports what it needs, and the arguments are read by the standard
library alone.
"""

import argparse
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from posttrain.cli.check_world import add_check_world
from posttrain.cli.command import add_command
from posttrain.cli.compare import add_compare
from posttrain.cli.dashboard import add_dashboard
from posttrain.cli.demo import add_demo
from posttrain.cli.evaluate import add_evaluate
from posttrain.cli.get_model import add_get_model
from posttrain.cli.jobs import add_jobs
from posttrain.cli.plan import add_plan, plan_text, read_checked_plan
from posttrain.cli.serving import add_serving
from posttrain.cli.traces import add_traces
from posttrain.cli.train import add_train
from posttrain.runtime.exits import DataError, Interrupted, exit_codes
from posttrain.runtime.redaction import redact_uncaught


def app(arguments: Sequence[str] | None = None) -> None:
    """Run the command that `arguments` ask for, those of the process by default."""
    redact_uncaught()
    with exit_codes():
        given = vars(make_parser().parse_args(arguments))
        try:
            given.pop("command")(**given)
            sys.stdout.flush()
        except BrokenPipeError:  # `| head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise SystemExit(1) from None
        except KeyboardInterrupt:
            print("interrupted: what is done is kept", file=sys.stderr)
            raise SystemExit(128 + signal.SIGINT) from None


def make_parser() -> argparse.ArgumentParser:
    """The parser of all commands: `command` of a parsed line is a function of its other
    arguments."""
    parser = argparse.ArgumentParser("posttrain", description="Questions about trajectories, runs, traces and jobs.")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    command = add_command(commands, "health", health)
    command.add_argument("file", type=Path, help="trajectories with rewards: JSONL, JSON or Parquet")
    command.add_argument("--format", dest="file_format", help="what the file holds, where its records do not tell")
    command.add_argument("--reward", default="", help="the column of the reward, where the format has no other")
    command.add_argument(
        "--group", default="", help="the column that plays of one task share, or their number in a row"
    )
    command.add_argument("--success-at", type=float, default=1.0, help="an episode with this reward or more succeeded")
    command.add_argument("--json", dest="as_json", action="store_true", help="one JSON object instead of a table")
    add_command(commands, "summary", summary)
    add_command(commands, "verify", verify)
    add_plan(commands)
    command = add_command(commands, "run", run)
    command.add_argument(
        "targets", nargs="*", metavar="TARGET", help="as `dvc repro` takes them; all stages by default"
    )
    add_compare(commands)
    add_dashboard(commands)
    add_get_model(commands)
    command = add_command(commands, "export-served", export_served)
    command.add_argument("folder", type=Path, help="a model's folder, such as data/models/sft")
    command.add_argument("target", type=Path, help="where the copy goes")
    command.add_argument(
        "--dtype",
        choices=["float32", "bfloat16"],
        default="float32",
        help="of the weights; model.dtype of the training",
    )
    add_serving(commands)
    command = add_command(commands, "clean", clean)
    command.add_argument("names", nargs="*", metavar="NAME", help="what is to go; all is shown by default")
    command.add_argument("--yes", dest="is_agreed", action="store_true", help="remove it")
    add_traces(commands)
    add_check_world(commands)
    add_evaluate(commands)
    add_train(commands)
    add_demo(commands)
    add_jobs(commands)
    command = add_command(commands, "merge-driver", merge_driver)
    command.add_argument("path", help="the file's in the tree")
    for side in ("base", "ours", "theirs"):
        command.add_argument(side, type=Path, help="a copy of it, made by git")
    return parser


def health(file: Path, file_format: str | None, reward: str, group: str, success_at: float, as_json: bool) -> None:
    """Estimate how much groups of these trajectories would teach: reward spread within a task, and
    the share of groups without any."""
    from posttrain.evals.health import group_health
    from posttrain.evals.rollout_files import read_rollouts

    found = read_rollouts(file, file_format, reward=reward, group=group)
    if found.unread:
        print(found.unread, file=sys.stderr)
    if bad := found.bad:
        print(f"{len(bad)} records are none; the first, {bad[0].number}: {bad[0].reason}", file=sys.stderr)
    metrics = group_health(found.rollouts, success_at=success_at, source=str(file))
    if metrics["num_lost"] or metrics["num_unscored"]:
        why = f"{metrics['num_lost']} that infrastructure ended, {metrics['num_unscored']} without a reward"
        print(f"left out: {why}, of {len(found.rollouts)} rollouts", file=sys.stderr)
    print(json.dumps(metrics, sort_keys=True, indent=2) if as_json else _table(metrics))


def verify() -> None:
    """Does dvc.lock say of every stage what it really read, and was each entry made by a run?
    Corrects it where not, exits with 75 then; mends what a killed dvc cut off, and has DVC see
    files that others of their size and time have replaced. Names the entries that no run made, or
    one with modules from elsewhere, and exits with 65."""
    _verify_lock()
    if lines := _unproven_lines():
        raise DataError("\n".join(lines))


def _unproven_lines() -> list[str]:
    from posttrain.provenance.run_records import RECORDS, unproven

    found = unproven(Path.cwd())
    lines = [
        f"nobody knows what made {stage}: {RECORDS} has no run with what dvc.lock says that it read and made (a "
        f"`dvc commit`, an output written by hand, or a lost record). `dvc repro -f {stage}` makes it again"
        for stage in found.unknown
    ]
    lines += [
        f"{stage} ran with {', '.join(names)} from outside of the tree and of what is installed, so what made it is "
        f"not all recorded. Take the folder off Python's path (PYTHONPATH, a .pth file) and run `dvc repro -f {stage}`"
        for stage, names in found.foreign.items()
    ]
    return lines


def _verify_lock() -> None:
    from posttrain.provenance.cache_integrity import check_files
    from posttrain.provenance.receipts import apply_receipts
    from posttrain.provenance.run_cache import import_verified_runs, remove_unrecorded_runs

    def tell(line: str) -> None:
        print(line, file=sys.stderr)

    corrected = apply_receipts(Path.cwd(), tell)
    removed = check_files(Path.cwd(), tell)
    if corrected:
        raise Interrupted(
            f"{', '.join(corrected)} had been recorded with what was edited meanwhile: run `dvc repro`, "
            "or take the edit back"
        )
    remove_unrecorded_runs(Path.cwd())
    import_verified_runs(Path.cwd())
    if removed:
        raise Interrupted(f"{', '.join(removed)} had come out of DVC's cache damaged: run `dvc repro`")


def run(targets: Sequence[str]) -> None:
    """`dvc repro`, which tells first what it will run, then how far the whole run is, and in the
    end the table."""
    from posttrain.pipeline.dvc_commands import repro
    from posttrain.provenance.eta import run_environment
    from posttrain.provenance.run_records import record_restored

    _verify_lock()
    for line in _unproven_lines():
        print(line, file=sys.stderr)
    stages, times = read_checked_plan(targets)
    print(plan_text(stages, times), flush=True)
    coming = {stage.name: times.of(stage) for stage in stages if stage.fate != "current"}
    os.environ.update(run_environment(coming, Path()))
    try:
        repro(Path(), targets)
    finally:
        record_restored(Path())
    if not targets:
        summary()


def summary() -> None:
    """The table of policies of the last run, or of the commit where nothing has run, and how both
    compare."""
    from posttrain.report.committed import origin_of_figures, refuse_unrecorded
    from posttrain.report.run_page import write_run_page
    from posttrain.report.table import POLICIES, summary_table

    _verify_lock()
    reports = Path("reports")
    refuse_unrecorded([reports / "evaluate" / f"{policy}.json" for policy in POLICIES], Path("dvc.lock"))
    print(f"{summary_table(reports)}\n{origin_of_figures(reports)}")
    print(write_run_page(Path()))


def clean(names: Sequence[str], is_agreed: bool) -> None:
    """Show the disk space by place. With names and --yes these places are emptied, but for files
    that a living run or job needs."""
    from posttrain.cli.clean import clean as clean_places

    clean_places(names, is_agreed=is_agreed)


def export_served(folder: Path, target: Path, dtype: Literal["float32", "bfloat16"]) -> None:
    """Copy a model's folder as vLLM serves it for rollouts: with the output matrix written out, so
    that a weight update reaches it."""
    from posttrain.models.loading import load_on_cpu
    from posttrain.rollout.engines.weight_files import write_served_folder

    write_served_folder(folder, load_on_cpu(folder, dtype=dtype), target)


def merge_driver(path: str, base: Path, ours: Path, theirs: Path) -> None:
    """For git, which `make setup` tells of it: merge a file that .gitattributes names. Exits with 1
    where git's own merge has to follow."""
    from posttrain.pipeline.merge_driver import merge_file

    if not merge_file(path, base, ours, theirs, lambda line: print(line, file=sys.stderr)):
        raise SystemExit(1)


def _table(metrics: Mapping[str, float]) -> str:
    width = max(len(name) for name in metrics)
    return "\n".join(
        f"{name:<{width}}  {value:>10.4f}" if isinstance(value, float) else f"{name:<{width}}  {value:>10}"
        for name, value in metrics.items()
    )


if __name__ == "__main__":
    app()
