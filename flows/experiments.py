"""Flow of experiments: overrides times seeds, each on a branch of its own, with a comparison or a
table of verdicts at the end.

`python -m flows.experiments FILE` with

    overrides:
      - {name: base}
      - {name: faster, set: {train_policy.lr: 4.0e-3}}
    seeds: [1, 2]

makes `exp/base-seed1` and so on from the last commit. Jobs, their records and the GPU slots are the
main tree's, and so is DVC's cache: what two experiments have in common runs once. Everything is
checked before the first one starts. A file with a `name` keeps a record of what came out in
`reports/experiments`, and arms that are on record with today's knobs and code are not run again.
"""

import argparse
import contextvars
import math
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger
from prefect.artifacts import create_markdown_artifact
from prefect.client.schemas.objects import State
from prefect.states import Cancelled, Completed, Failed

from flows.exit_codes import StageFailure, exit_with
from flows.graph_run import BESIDE_EACH_OTHER, LOOK_S, is_cancelled, run_graph
from flows.local_server import with_server
from posttrain.dispatch.settings import DISPATCH_YAML, LocalTarget, load_settings
from posttrain.experiments.branches import (
    PARAMS,
    check_branches,
    commit_results,
    open_worktree,
    take_earlier_run,
)
from posttrain.experiments.plan import Plan, Variant, read_plan, variants
from posttrain.experiments.record import code_digest, of_today, read_arm, read_arms, record_file, write_arms
from posttrain.experiments.verdicts import make_table, table_markdown
from posttrain.pipeline.executor import StageExecutor, lock_key
from posttrain.pipeline.git import edited_files, file_at
from posttrain.report.comparison.page import comparison_page
from posttrain.report.comparison.runs import read_runs
from posttrain.report.comparison.settings import compare_settings
from posttrain.report.comparison.tables import comparison_markdown, comparison_text
from posttrain.report.table import read_evaluations, strict_success
from posttrain.runtime.exits import ConfigurationError, DataError, StageError
from posttrain.runtime.state import STATE_DIR

REPORTS = Path("reports")
PAGE = STATE_DIR / "experiments" / "comparison.html"


class UnderWay:
    """The experiments of one run. After `stop` none of their jobs lives, and none starts."""

    def __init__(self) -> None:
        self._runs: list[StageExecutor] = []
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self.one_opens = threading.Lock()  # git makes one worktree at a time

    @property
    def is_stopped(self) -> bool:
        return self._stopped.is_set()

    def add(self, runs: StageExecutor) -> None:
        with self._lock:
            self._runs.append(runs)
        if self.is_stopped:
            runs.stop()

    def stop(self) -> None:
        self._stopped.set()
        with self._lock:
            under_way = list(self._runs)
        with ThreadPoolExecutor(max(len(under_way), 1)) as pool:
            list(pool.map(StageExecutor.stop, under_way))


@flow(log_prints=False, validate_parameters=False)
def experiments(
    file: str = "",
    overrides: list[dict[str, Any]] | None = None,
    seeds: list[int] | None = None,
    only: list[str] | None = None,
    num_beside: int = 2,
) -> State[Any]:
    """Run overrides times seeds, from a YAML file or given here; `only` these overrides,
    `num_beside` at a time. A branch that is there is gone on with."""
    root = Path.cwd()
    plan, chosen = chosen_variants(root, file, overrides or (), seeds or (), only or ())
    todo = missing(root, plan, chosen)
    under_way, ended = run_variants(root, todo, num_beside, plan.targets)
    done = [variant for variant in todo if is_done(ended.get(variant.name))]
    if plan.name:
        text = markdown = record(root, plan, done)
    else:
        text, markdown = compared(root, [variant.branch for variant in done])
    get_run_logger().info("%s", text)
    create_markdown_artifact(
        f"{experiments_markdown(root, todo, ended, plan.targets)}\n{markdown}",
        key="experiments",
        description="what each experiment came to",
    )
    return total_state(under_way, ended)


def run_variants(
    root: Path, chosen: Sequence[Variant], num_beside: int, targets: Sequence[str] = ()
) -> tuple[UnderWay, dict[str, State[Any]]]:
    """Each as a child of the flow run that this is called in; the states by the variant's name, of
    those that were begun. None is left running."""
    log = get_run_logger()
    if edited := edited_files(root):
        log.warning("experiments start from the last commit, without your edits of %s", ", ".join(edited[:10]))
    log.info("%d experiments: %s", len(chosen), ", ".join(variant.branch for variant in chosen))
    if (at_once := num_slots(root)) < min(num_beside, len(chosen)):
        log.warning(
            "stages that reserve a GPU run %d at a time (num_gpus in %s), however many experiments are beside each "
            "other; without a GPU set num_gpus to the number of processors, and POSTTRAIN_THREADS=1",
            at_once,
            DISPATCH_YAML,
        )
    under_way, ended = UnderWay(), dict[str, State[Any]]()
    with ThreadPoolExecutor(max(num_beside, 1), thread_name_prefix="experiment") as pool:
        # each in a copy of this context, so that its run is a child of this one
        starts = [partial(_run, variant, root, under_way, ended, targets) for variant in chosen]
        futures = [pool.submit(contextvars.copy_context().run, start) for start in starts]
        try:
            _wait_for(futures, under_way)
        except BaseException:  # the job of a stage is ended by no signal to this process
            under_way.stop()
            raise
    return under_way, ended


def num_slots(root: Path) -> float:
    """Stages that reserve a GPU and may run at a time, of a target that is this machine."""
    settings = load_settings(root)
    target = settings.targets[settings.target]
    return target.num_gpus if isinstance(target, LocalTarget) else math.inf


def total_state(under_way: UnderWay, ended: Mapping[str, State[Any]]) -> State[Any]:
    """The state of all experiments together: failed with the exit code of the first that did."""
    if under_way.is_stopped:
        return Cancelled(message="it was cancelled; run it again, what is done is kept")
    if failed := {name: state for name, state in ended.items() if not state.is_completed()}:
        message = "; ".join(f"{name}: {state.message}" for name, state in failed.items())
        first = next(iter(failed.values())).result(raise_on_failure=False)
        return Failed(message=message, data=StageFailure(message, getattr(first, "code", 1)))
    return Completed(message=f"{len(ended)} experiments are up to date")


def chosen_variants(
    root: Path, file: str, overrides: Sequence[Mapping[str, Any]], seeds: Sequence[int], only: Sequence[str] = ()
) -> tuple[Plan, list[Variant]]:
    """The plan and the experiments to run, checked. Raises ConfigurationError, before anything was
    run."""
    plan = read_plan(Path(file) if file else None, overrides, seeds)
    chosen = variants(plan, _params(root), only=only)
    check_branches(root, chosen)
    return plan, chosen


def missing(root: Path, plan: Plan, chosen: Sequence[Variant]) -> list[Variant]:
    """Experiments that are not on record with the knobs and the code that they would have now."""
    if not plan.name:
        return list(chosen)
    known, code = of_today(plan, read_arms(record_file(root, plan)), params=_params(root)), code_digest(root)
    return [one for one in chosen if one.name not in known or known[one.name].code != code]


def record(root: Path, plan: Plan, done: Sequence[Variant]) -> str:
    """Take over what came out in the worktrees, beside what is on record. Returns the table of
    verdicts, which is written too, or a sentence why there is none."""
    file = record_file(root, plan)
    arms = read_arms(file) | {one.name: read_arm(folder_of(root, one), plan, one) for one in done}
    if done:
        write_arms(file, arms)
    try:
        text = table_markdown(make_table(plan, arms, params=_params(root)), plan)
    except DataError as error:
        return str(error)
    file.with_suffix(".md").write_text(text, encoding="utf-8")
    return text


def _params(root: Path) -> str:
    if (params := file_at(root, "HEAD", PARAMS)) is None:
        raise ConfigurationError(f"{root} has no commit with a {PARAMS}: experiments start from the last commit")
    return params


def experiments_markdown(
    root: Path, chosen: Sequence[Variant], ended: Mapping[str, State[Any]], targets: Sequence[str] = ()
) -> str:
    """A row per experiment, with the strict success of what was trained where it ended well."""
    rows = ["| branch | knobs | sft | policy | state |", "| --- | --- | ---: | ---: | --- |"]
    for variant in chosen:
        state = ended.get(variant.name)
        figures = " | "
        if is_done(state) and not targets:
            evaluations = read_evaluations(folder_of(root, variant) / REPORTS)
            figures = f"{strict_success(evaluations['sft'])} | {strict_success(evaluations['policy'])}"
        ending = " ".join(f"{state.name}: {state.message}".split()) if state is not None else "not run"
        knobs, ending = (text.replace("|", "\\|") for text in (variant.sentence(), ending))
        rows.append(f"| `{variant.branch}` | {knobs} | {figures} | {ending} |")
    return "\n".join(rows) + "\n"


def compared(root: Path, branches: Sequence[str]) -> tuple[str, str]:
    """The branches against the first of them, as text and as Markdown; `PAGE` is made of them, and
    the text says where that is. A sentence where there are not two."""
    if len(branches) < 2:
        few = "Fewer than two experiments ended well: there is nothing to compare."
        return few, f"{few}\n"
    settings = compare_settings(read_runs(root, branches))
    page = root / PAGE
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(comparison_page(settings), encoding="utf-8")
    return f"compared:\n{comparison_text(settings)}\n\nas a page: {page}", comparison_markdown(settings)


def is_done(state: State[Any] | None) -> bool:
    """True where an experiment has run to its end and succeeded."""
    return state is not None and state.is_completed()


def folder_of(root: Path, variant: Variant) -> Path:
    """Worktree of an experiment."""
    return root / STATE_DIR / "experiments" / variant.name


def _run(
    variant: Variant, root: Path, under_way: UnderWay, ended: dict[str, State[Any]], targets: Sequence[str]
) -> None:
    """Run one experiment as a flow run of its own, and put its state into `ended`."""
    if under_way.is_stopped:
        return

    @flow(
        name="experiment",
        flow_run_name=variant.branch,
        log_prints=False,
        validate_parameters=False,
        task_runner=BESIDE_EACH_OTHER,
    )
    def experiment(knobs: dict[str, Any]) -> State[Any]:
        """Bring one branch up to date, and commit its results there."""
        get_run_logger().info("%s: %s", variant.branch, ", ".join(f"{key} = {value}" for key, value in knobs.items()))
        try:
            return _bring_up_to_date(variant, root, under_way, targets)
        except StageError as error:
            return Failed(message=str(error), data=StageFailure(str(error), error.code))

    ended[variant.name] = experiment(dict(variant.knobs), return_state=True)


def _bring_up_to_date(variant: Variant, root: Path, under_way: UnderWay, targets: Sequence[str]) -> State[Any]:
    state, folder = root / STATE_DIR, folder_of(root, variant)
    log = get_run_logger().info
    with lock_key(state / "keys", f"experiment-{variant.name}", log, is_stopped=lambda: under_way.is_stopped):
        with under_way.one_opens:
            open_worktree(root, variant, folder)
            if variant.earlier:
                take_earlier_run(folder, root / STATE_DIR / "experiments" / variant.earlier)
        runs = StageExecutor(folder, settings=load_settings(root), state=state)
        under_way.add(runs)
        came_out = run_graph(runs, folder / REPORTS, targets)
        if not came_out.is_completed():
            return came_out
        figure = "" if targets else f": policy {strict_success(read_evaluations(folder / REPORTS)['policy'])}"
        commit = commit_results(folder, f"{variant.branch}{figure}")
        return Completed(message=f"{came_out.message}; at {commit}")


def _wait_for(futures: Sequence[Future[None]], under_way: UnderWay) -> None:
    """Raises what an experiment's thread raised; an experiment that failed raises nothing."""
    left = set(futures)
    while left:
        done, left = wait(left, timeout=LOOK_S)
        for future in done:
            future.result()
        if left and not under_way.is_stopped and is_cancelled():
            get_run_logger().warning("cancelled on the server: all jobs are killed")
            under_way.stop()


def main() -> None:
    """Refuses a wrong plan before a server is started for it."""
    parser = argparse.ArgumentParser(
        "flows.experiments", description="Run overrides times seeds, each on a branch exp/NAME-seedN."
    )
    parser.add_argument("file", help="YAML: overrides, each with a name and what to set, and seeds")
    parser.add_argument("--seeds", type=int, nargs="*", default=[], help="instead of the file's")
    parser.add_argument("--only", nargs="*", default=[], help="overrides of the file, by their names")
    parser.add_argument("--beside", type=int, default=2, help="experiments at a time")
    parser.add_argument("--table", action="store_true", help="run nothing: the verdicts on what is on record")
    given = parser.parse_args()

    def run() -> None:
        root = Path.cwd()
        plan, _ = chosen_variants(root, given.file, (), given.seeds, given.only)
        if given.table:
            print(record(root, plan, ()))
            return
        how = {"file": given.file, "seeds": given.seeds, "only": given.only, "num_beside": given.beside}
        with_server(lambda: experiments(**how))

    exit_with(run)


if __name__ == "__main__":
    main()
