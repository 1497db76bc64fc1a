"""`posttrain run`, `plan`, `summary` and `verify`: the pipeline and its `dvc.lock`."""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posttrain.cli.command import Commands, add_command
from posttrain.runtime.exits import ConfigurationError, DataError, Interrupted

if TYPE_CHECKING:
    from posttrain.pipeline.plan import PlannedStage

_DVC_S = 1.0  # to record a stage's result, or take it from the cache; measured on two cores
_MAX_CHANGES = 4


@dataclass(frozen=True, slots=True)
class Times:
    """About how long stages take, by name, in seconds. `look_s`: what DVC takes to load and to
    compare the tree, once a run."""

    seconds: Mapping[str, float]
    look_s: float = 0.0

    def of(self, stage: "PlannedStage") -> float | None:
        """Seconds of a stage, with DVC's share; None where no run of it is known."""
        if stage.fate == "cached":
            return _DVC_S
        seconds = self.seconds.get(stage.name)
        return None if seconds is None else seconds + _DVC_S

    def sum(self, stages: Sequence["PlannedStage"], more_s: float = 0.0) -> str:
        """`12 min`, `over 3 min` where some stage's is not known, else `?`."""
        from posttrain.provenance.eta import duration

        found = [self.of(stage) for stage in stages]
        known = [seconds for seconds in found if seconds is not None]
        return f"{'over ' * (len(known) < len(found))}{duration(sum(known) + more_s)}" if known else "?"


def add_pipeline(commands: Commands) -> None:
    targets: Any = {"nargs": "*", "metavar": "TARGET", "help": "a stage or output; all stages by default"}
    add_command(commands, "run", run).add_argument("targets", **targets)
    command = add_command(commands, "plan", plan)
    command.add_argument("targets", **targets)
    command.add_argument("--gpu", type=float, metavar="GIB", help="instead: does each stage fit on a card of so much?")
    command.add_argument(
        "--params", type=Path, default=Path("params.yaml"), help="with --gpu: other knobs, or an experiment"
    )
    command.add_argument("--model", type=Path, metavar="FOLDER", help="with --gpu: where the model's config.json is")
    command.add_argument(
        "--processes", type=int, default=1, metavar="N", help="with --gpu: that train together, a card each"
    )
    command.add_argument("--launch", type=Path, metavar="FILE", help="with --processes: how, one of infra/accelerate/")
    command.add_argument(
        "--servers", type=int, default=0, metavar="N", help="with --gpu: vLLM servers that play instead"
    )
    add_command(commands, "summary", summary)
    add_command(commands, "verify", verify)


def run(targets: Sequence[str]) -> None:
    """Run the pipeline by `dvc repro`: print the plan first, then progress, and at the end the
    table of policies. `make run` is this command."""
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


def plan(
    targets: Sequence[str],
    gpu: float | None,
    params: Path,
    model: Path | None,
    processes: int,
    launch: Path | None,
    servers: int,
) -> None:
    """Show which stages the next run will execute, why, and about how long it takes. Wrong knobs
    are refused. With --gpu: the memory of each stage, and what to change where it does not fit."""
    if gpu is None:
        if model is not None or params != Path("params.yaml") or (processes, launch, servers) != (1, None, 0):
            raise ConfigurationError("--params, --model, --processes, --launch and --servers belong to --gpu GIB")
        from posttrain.provenance.receipts import apply_receipts

        apply_receipts(Path(), _warn)  # repairs what a killed dvc has left
        print(plan_text(*read_checked_plan(targets)))
        return
    if not 0 < gpu < 1e6 or targets:
        raise ConfigurationError(f"--gpu {gpu:g}: name the GiB of a card, and no target: all stages are estimated")
    from posttrain.cli.memory_plan import memory_table
    from posttrain.memory_estimate.processes import Processes

    if processes < 1 or servers < 0:
        raise ConfigurationError(
            f"--processes {processes}, --servers {servers}: name one process or more, and servers or none"
        )
    if launch is not None and not launch.is_file():
        raise ConfigurationError(f"--launch {launch}: there is no such file; infra/accelerate/ has those to name")
    how = Processes.of(launch, count=processes, servers=servers)
    print(memory_table(gpu, params_yaml=params, model_folder=model, processes=how))


def read_checked_plan(targets: Sequence[str]) -> tuple[tuple["PlannedStage", ...], Times]:
    """The plan of the tree and its times. Raises ConfigurationError of wrong knobs too."""
    started_s = time.monotonic()
    from posttrain.config.params import load_params
    from posttrain.pipeline.plan import read_plan
    from posttrain.provenance.eta import read_forecast

    load_params()
    stages = read_plan(Path(), targets)
    return stages, Times(read_forecast(Path()), look_s=time.monotonic() - started_s)


def plan_text(stages: Sequence["PlannedStage"], times: Times) -> str:
    """A line for each stage that is not current, the names of the others, and the sum."""
    coming = [stage for stage in stages if stage.fate != "current"]
    current = [stage.name for stage in stages if stage.fate == "current"]
    if not coming:
        return f"nothing to run: {_stages(len(stages))} up to date"
    width = max(len(stage.name) for stage in coming)
    times_width = max(10, *(len(times.sum([stage])) for stage in coming))
    lines = [
        f"{stage.name:<{width}}  {stage.fate:<6} {times.sum([stage]):>{times_width}}  {_reason(stage)}"
        for stage in coming
    ]
    lines += [f"up to date: {', '.join(current)}"] * bool(current)
    total = _in_brackets(times.sum(coming, times.look_s))
    return "\n".join([*lines, f"{len(coming)} of {_stages(len(stages))}{total}: {_shares(coming, times)}"])


def _reason(stage: "PlannedStage") -> str:
    changes = ", ".join(stage.changed[:_MAX_CHANGES])
    if len(stage.changed) > _MAX_CHANGES:
        changes += f" and {len(stage.changed) - _MAX_CHANGES} more"
    waits_for = ", ".join(stage.waits_for[:_MAX_CHANGES]) + " …" * (len(stage.waits_for) > _MAX_CHANGES)
    if stage.fate == "maybe":
        waits_for = f"if {waits_for} make{'s' * (len(stage.waits_for) == 1)} something else"
        changes = f"{changes}; from the run cache but {waits_for}" if changes else waits_for
    return changes + "; its output stays the same" * stage.is_constant


def _shares(stages: Sequence["PlannedStage"], times: Times) -> str:
    """`2 run (4 min), 7 may run (8 min)`; without times where nobody knows them."""
    parts = []
    for fate, verb in (("runs", "run"), ("cached", "come from the run cache"), ("maybe", "may run")):
        if found := [stage for stage in stages if stage.fate == fate]:
            parts.append(f"{len(found)} {verb}{_in_brackets(times.sum(found))}")
    return ", ".join(parts)


def _in_brackets(about: str) -> str:
    return "" if about == "?" else f" ({about})"


def _stages(number: int) -> str:
    return f"{number} stage{'s' if number != 1 else ''}"


def verify() -> None:
    """Check dvc.lock and repair it: each entry must name what its stage really read, and be made by
    a run. Exits with 75 where one was corrected, with 65 where one was made by no run."""
    _verify_lock()
    if lines := _unproven_lines():
        raise DataError("\n".join(lines))


def _unproven_lines() -> list[str]:
    from posttrain.provenance.run_records import RECORDS, unproven

    return [
        f"{stage}: {RECORDS} has no run with the inputs and outputs of its entry in dvc.lock (a `dvc commit`, an "
        f"output written by hand, or a lost record), so its result is unproven. `dvc repro -f {stage}` makes it again"
        for stage in unproven(Path.cwd())
    ]


def _verify_lock() -> None:
    from posttrain.provenance.cache_integrity import remove_damaged_listings
    from posttrain.provenance.receipts import apply_receipts
    from posttrain.provenance.run_cache import import_verified_runs, remove_unrecorded_runs

    for path in remove_damaged_listings(Path.cwd()):
        _warn(f"{path}: its listing in DVC's cache is damaged and removed, the next run makes it again")
    corrected = apply_receipts(Path.cwd(), _warn)
    if corrected:
        raise Interrupted(
            f"{', '.join(corrected)}: recorded with inputs that were edited during the run, now corrected. Run "
            "`dvc repro`, or undo the edit"
        )
    remove_unrecorded_runs(Path.cwd())
    import_verified_runs(Path.cwd())


def summary() -> None:
    """Print the success rates of the last run, and whether the policy's is the committed one."""
    from posttrain.report.committed import compare_with_committed, refuse_unrecorded
    from posttrain.report.run_page import write_run_page
    from posttrain.report.table import POLICIES, summary_table

    _verify_lock()
    reports = Path("reports")
    refuse_unrecorded([reports / "evaluate" / f"{policy}.json" for policy in POLICIES], Path("dvc.lock"))
    print(summary_table(reports), compare_with_committed(reports, ["policy"])[0].sentence, sep="\n")
    print(write_run_page(Path()))


def _warn(line: str) -> None:
    print(line, file=sys.stderr)
