"""Records the result of a job in the person's folder, and only where inputs and knobs there are
still those that ran.

Otherwise nothing is written: the result stays in DVC's cache and run cache, the stage shows as
changed, and taking the edit back brings it without running. So `dvc.lock` never binds a new value
to an old output.
"""

import shutil
from pathlib import Path
from typing import Any

from dvc.exceptions import DvcException
from dvc.lock import LockError
from dvc.repo import Repo
from dvc.repo.reproduce import plan_repro
from dvc.stage import PipelineStage
from dvc.stage.loader import StageLoader
from dvc.stage.serialize import to_single_stage_lockfile

from posttrain.pipeline.snapshot import Snapshot, find_stage, locked, stage_key
from posttrain.provenance.costs import COSTS, read_costs
from posttrain.provenance.fingerprint import cache_key
from posttrain.provenance.lockfile import differences, lock_entries, retry_while_locked, write_entry
from posttrain.provenance.run_records import keep_cost, record_run
from posttrain.runtime.exits import ConfigurationError, DataError, Interrupted


def record_result(root: Path, snapshot: Snapshot) -> list[str]:
    """Add the entry of the snapshot's stage to `dvc.lock` in `root`, check its outputs out there,
    and keep the record of the run beside them. Gives the inputs that were edited since the snapshot
    was taken (paths and `params.yaml:key`): where there are any, nothing is recorded.

    Raises DataError where the snapshot has no finished result, or DVC's cache not all of it,
    ConfigurationError where DVC refuses `root`, Interrupted where another `dvc` works there for too
    long.
    """
    entry = lock_entries(snapshot.folder).get(snapshot.stage)
    if entry is None or "outs" not in entry:
        raise DataError(
            f"{snapshot.folder} has no result of {snapshot.stage} to record: the job did not end well, "
            "or was not run there"
        )

    def record() -> list[str]:
        with locked(root) as repo:
            return _record(repo, root, snapshot, entry)

    try:
        # A stage that runs there has released the folder's lock, and keeps those of its outputs.
        changed = retry_while_locked(record, LockError, root, pause_s=0.5)
    except DvcException as error:
        raise ConfigurationError(
            f"the result of {snapshot.stage} could not be recorded in {root}: {error}"
            f"{f' ({error.__cause__})' if error.__cause__ else ''}; "
            "it is in the run cache: run again when `dvc status` works"
        ) from error
    costs = [cost for cost in read_costs(snapshot.folder) if cost.stage == snapshot.stage]
    if not changed:
        record_run(root, snapshot.stage, entry, costs[-1] if costs else None)
    elif costs:
        keep_cost(root / COSTS, entry, costs[-1])
    return changed


def _record(repo: Repo, root: Path, snapshot: Snapshot, entry: dict[str, Any]) -> list[str]:
    stage = find_stage(repo, snapshot.stage)
    try:
        key = stage_key(stage)
    except DvcException:  # an input is gone
        key = ""
    if cache_key(entry) != snapshot.key:
        raise Interrupted(
            f"inputs of {snapshot.stage} changed in {snapshot.folder}, where its job ran, so its result is not "
            "accepted. A replace over hidden folders does this. Run again"
        )
    if key != snapshot.key:
        changed = differences(to_single_stage_lockfile(stage), entry, parts=["deps"])
        return changed or [f"inputs of {snapshot.stage}"]
    _check_out(stage, entry)
    order = [one.name for one in plan_repro(repo.index.graph) if isinstance(one, PipelineStage)]
    with repo.scm_context(quiet=True):
        for out in stage.outs:
            if out.use_cache:
                out.ignore()  # by git, as `dvc repro` does
            else:
                _copy(snapshot.folder / out.def_path, root / out.def_path)
        # In place of DVC's own writer, which a kill would leave with half of the file.
        write_entry(root, stage.name, to_single_stage_lockfile(stage), order)
    return []


def _check_out(stage: PipelineStage, entry: dict[str, Any]) -> None:
    """Check the outputs of an entry out of the cache. Raises DataError where one is gone."""
    StageLoader.fill_from_lock(stage, entry)
    try:
        gone = stage.checkout(force=True).get("failed", [])
    except FileNotFoundError as error:
        gone = [error.filename]
    if gone:
        raise DataError(
            f"{', '.join(map(str, gone))} of {stage.name} went from DVC's cache before it could be recorded "
            "(`dvc gc`?): run again"
        )


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target)
    else:
        shutil.copy2(source, target)
