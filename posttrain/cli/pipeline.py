"""`posttrain run`, `plan`, `summary`, `verify` and `merge-driver`: the pipeline and its
`dvc.lock`."""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posttrain.cli.command import Commands, add_command
from posttrain.runtime.exits import ConfigurationError, DataError, Interrupted
from posttrain.runtime.state import STATE_DIR

if TYPE_CHECKING:
    from posttrain.pipeline.plan import PlannedStage

_DVC_S = 1.0  # to record a stage's result, or take it from the cache; measured on two cores
_MAX_CHANGES = 4


@dataclass(frozen=True, slots=True)
class Times:
    """About how long stages take, by name, in seconds: by their last runs in this tree, and by the
    committed runs of the machine `whose`, up to `spread` times as long here, or as much less.
    `cut_short`: those with a run that was killed, which goes on where its inputs are the same.
    `look_s`: what DVC takes to load and to compare the tree, once a run."""

    here: Mapping[str, float]
    committed: Mapping[str, float]
    whose: str
    cut_short: frozenset[str] = frozenset()
    look_s: float = 0.0
    spread: float = 1.0

    def of(self, stage: "PlannedStage") -> float | None:
        """Seconds of a stage, with DVC's share; None where no run of it is known."""
        if stage.fate == "cached":
            return _DVC_S
        seconds = self.here.get(stage.name, self.committed.get(stage.name))
        return None if seconds is None else seconds + _DVC_S

    def sum(self, stages: Sequence["PlannedStage"]) -> str:
        """`12 min`, `over 3 min` where some stage's is not known, else `?`; `6 min to 24 min` by a
        machine of another kind."""
        return self._about(stages, 0.0)

    def total(self, stages: Sequence["PlannedStage"]) -> str:
        """The same of a run of these stages, from the command to its end."""
        return self._about(stages, self.look_s)

    def _about(self, stages: Sequence["PlannedStage"], more_s: float) -> str:
        from posttrain.provenance.eta import duration

        found = {stage: self.of(stage) for stage in stages}
        known = {stage: seconds for stage, seconds in found.items() if seconds is not None}
        foreign_s = sum(known.get(stage, 0.0) for stage in self._foreign(stages))
        own_s = sum(known.values()) - foreign_s + more_s
        ends = dict.fromkeys(duration(own_s + foreign_s * factor) for factor in (1 / self.spread, self.spread))
        return f"{'over ' * (len(known) < len(found))}{' to '.join(ends)}" if known else "?"

    def _foreign(self, stages: Sequence["PlannedStage"]) -> list["PlannedStage"]:
        """Stages whose times are of committed runs."""
        run = [stage for stage in stages if stage.fate != "cached"]
        return [stage for stage in run if stage.name in self.committed and stage.name not in self.here]

    def source(self, stages: Sequence["PlannedStage"]) -> str:
        """The line that says whose runs the times come from: this tree's or committed ones."""
        whose = ["this tree's last runs"] * any(stage.fate != "cached" and stage.name in self.here for stage in stages)
        if foreign := self._foreign(stages):
            of = f" of {', '.join(stage.name for stage in foreign)}" if whose else ""
            other = f"; this machine is of another kind, {self.spread:g} times as fast or slow at most"
            whose.append(f"the committed runs{of} ({self.whose}{other * (self.spread > 1)})")
        return f"times by {' and '.join(whose)}" if whose else "nothing has run here that would say how long it takes"


def add_pipeline(commands: Commands) -> None:
    """The commands about the pipeline as a whole."""
    targets: Any = {"nargs": "*", "metavar": "TARGET", "help": "a stage or output; all stages by default"}
    add_command(commands, "run", run).add_argument("targets", **targets)
    command = add_command(commands, "plan", plan)
    command.add_argument("targets", **targets)
    command.add_argument("--gpu", type=float, metavar="GIB", help="instead: does each stage fit on a card of so much?")
    command.add_argument("--params", type=Path, default=Path("params.yaml"), help="with --gpu: another file of knobs")
    command.add_argument("--model", type=Path, metavar="FOLDER", help="with --gpu: where the model's config.json is")
    command.add_argument("--json", dest="as_json", action="store_true", help="with --gpu: in bytes, as one object")
    add_command(commands, "summary", summary)
    add_command(commands, "verify", verify)
    command = add_command(commands, "merge-driver", merge_driver)
    command.add_argument("path", help="the file's path in the tree")
    for side in ("base", "ours", "theirs"):
        command.add_argument(side, type=Path, help="a copy of it, made by git")


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


def plan(targets: Sequence[str], gpu: float | None, params: Path, model: Path | None, as_json: bool) -> None:
    """Show which stages the next run will execute, why, and about how long it takes. Wrong knobs
    are refused. With --gpu: the memory of each stage, and what to change where it does not fit."""
    if gpu is None:
        if model is not None or as_json or params != Path("params.yaml"):
            raise ConfigurationError("--params, --model and --json belong to --gpu GIB")
        from posttrain.provenance.cache_integrity import check_files
        from posttrain.provenance.receipts import apply_receipts

        apply_receipts(Path(), _warn)  # repairs what a killed dvc has left
        check_files(Path(), _warn, remove_damaged=False)
        print(plan_text(*read_checked_plan(targets)))
        return
    if not 0 < gpu < 1e6 or targets:
        raise ConfigurationError(f"--gpu {gpu:g}: name the GiB of a card, and no target: all stages are estimated")
    from posttrain.cli.memory_plan import plan_memory

    plan_memory(gpu, params_yaml=params, model_folder=model, as_json=as_json)


def read_checked_plan(targets: Sequence[str]) -> tuple[tuple["PlannedStage", ...], Times]:
    """Read the plan of the tree in the working folder, and about how long it takes. Raises what
    `read_plan` does, and ConfigurationError of wrong knobs."""
    started_s = time.monotonic()
    from posttrain.config.params import load_params
    from posttrain.pipeline.plan import read_plan

    load_params()
    stages = read_plan(Path(), targets)
    return stages, replace(read_times(Path()), look_s=time.monotonic() - started_s)


def read_times(root: Path) -> Times:
    """Durations of earlier runs that the tree's stages have recorded."""
    from posttrain.provenance.costs import read_costs
    from posttrain.provenance.eta import read_forecast
    from posttrain.provenance.tree_locks import has_work

    ended = {cost.stage: cost.at for cost in read_costs(root)}
    folders = (root / STATE_DIR / "checkpoints").glob("*/*")
    cut_short = {
        path.parent.name
        for path in folders
        if has_work(path) and path.stat().st_mtime > ended.get(path.parent.name, 0.0)
    }
    found = read_forecast(root)
    return Times(found.here, found.committed, found.whose, frozenset(cut_short), spread=found.spread)


def plan_text(stages: Sequence["PlannedStage"], times: Times) -> str:
    """A line for each stage that is not current, the names of the others, and the sum."""
    coming = [stage for stage in stages if stage.fate != "current"]
    current = [stage.name for stage in stages if stage.fate == "current"]
    if not coming:
        return f"nothing to run: {_stages(len(stages))} up to date"
    width = max(len(stage.name) for stage in coming)
    times_width = max(10, *(len(times.sum([stage])) for stage in coming))
    lines = []
    for stage in coming:
        goes_on = "; a run of it was cut short, and goes on if it read the same" * (stage.name in times.cut_short)
        lines.append(
            f"{stage.name:<{width}}  {stage.fate:<6} {times.sum([stage]):>{times_width}}  {_reason(stage)}{goes_on}"
        )
    lines += [f"up to date: {', '.join(current)}"] * bool(current)
    counts = f"{len(coming)} of {_stages(len(stages))}{_in_brackets(times.total(coming))}: {_shares(coming, times)}"
    return "\n".join([*lines, counts, times.source(coming)])


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
    a run. Exits with 75 where an entry was corrected or a damaged output removed, and with 65 where
    an entry was made by no run, or by one with modules from outside of the tree."""
    _verify_lock()
    if lines := _unproven_lines():
        raise DataError("\n".join(lines))


def _unproven_lines() -> list[str]:
    from posttrain.provenance.run_records import RECORDS, unproven

    found = unproven(Path.cwd())
    lines = [
        f"{stage}: {RECORDS} has no run with the inputs and outputs of its entry in dvc.lock (a `dvc commit`, an "
        f"output written by hand, or a lost record), so its result is unproven. `dvc repro -f {stage}` makes it again"
        for stage in found.unknown
    ]
    lines += [
        f"{stage} ran with {', '.join(names)} from outside of the tree and of the installed packages, so its inputs "
        "are not all recorded. Take the folder off Python's path (PYTHONPATH, a .pth file) and run "
        f"`dvc repro -f {stage}`"
        for stage, names in found.foreign.items()
    ]
    return lines


def _verify_lock() -> None:
    from posttrain.provenance.cache_integrity import check_files
    from posttrain.provenance.receipts import apply_receipts
    from posttrain.provenance.run_cache import import_verified_runs, remove_unrecorded_runs

    corrected = apply_receipts(Path.cwd(), _warn)
    removed = check_files(Path.cwd(), _warn)
    if corrected:
        raise Interrupted(
            f"{', '.join(corrected)}: recorded with inputs that were edited during the run, now corrected. Run "
            "`dvc repro`, or undo the edit"
        )
    remove_unrecorded_runs(Path.cwd())
    import_verified_runs(Path.cwd())
    if removed:
        raise Interrupted(f"{', '.join(removed)} had come out of DVC's cache damaged: run `dvc repro`")


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


def merge_driver(path: str, base: Path, ours: Path, theirs: Path) -> None:
    """Merge dvc.lock or results for git, which `make setup` configures. Exits with 1 where git's
    own merge has to follow."""
    from posttrain.pipeline.merge_driver import merge_file

    if not merge_file(path, base, ours, theirs, _warn):
        raise SystemExit(1)


def _warn(line: str) -> None:
    print(line, file=sys.stderr)
