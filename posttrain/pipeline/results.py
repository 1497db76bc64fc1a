"""The result of a job comes into the person's folder through one writer, and only where inputs and
knobs there are still those that ran.

Otherwise nothing is written: the result stays in DVC's cache and run cache, the stage shows as
changed, and taking the edit back brings it without running. So `dvc.lock` never binds a new value
to an old output.
"""

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dvc.exceptions import DvcException
from dvc.lock import LockError
from dvc.repo import Repo
from dvc.repo.reproduce import plan_repro
from dvc.stage import PipelineStage
from dvc.stage.loader import StageLoader
from dvc.stage.serialize import to_single_stage_lockfile

from posttrain.pipeline.snapshot import Snapshot, entry_digest, find_stage, key_of, locked
from posttrain.provenance.cache_integrity import remove_damaged_outs
from posttrain.provenance.costs import COSTS, read_costs
from posttrain.provenance.lockfile import PATIENCE_S, differences, edit_lock, lock_entries
from posttrain.provenance.run_records import keep_cost, record_run
from posttrain.runtime.exits import ConfigurationError, DataError, Interrupted


@dataclass(frozen=True, slots=True)
class Recorded:
    """`changed` names what was edited since the snapshot was taken, as a person would: paths and
    `params.yaml:key`. Empty where it is recorded."""

    changed: tuple[str, ...] = ()

    @property
    def is_recorded(self) -> bool:
        return not self.changed


def record_result(root: Path, snapshot: Snapshot) -> Recorded:
    """Add the entry of the snapshot's stage to `dvc.lock` in `root`, check its outputs out there,
    and keep the record of the run beside them.

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
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            with locked(root) as repo:
                recorded = _record(repo, root, snapshot, entry)
            costs = [cost for cost in read_costs(snapshot.folder) if cost.stage == snapshot.stage]
            if recorded.is_recorded:
                record_run(root, snapshot.stage, entry, costs[-1] if costs else None)
            elif costs:
                keep_cost(root / COSTS, entry, costs[-1])
            return recorded
        except LockError as error:  # of a stage that runs there, and has let go of the folder's lock meanwhile
            if time.monotonic() > deadline:
                raise Interrupted(
                    f"another dvc runs a stage in {root} ({error}), so the result of {snapshot.stage} could not "
                    "be recorded; it is in the run cache: "
                    "run again when that dvc is done"
                ) from error
            time.sleep(0.5)
        except DvcException as error:
            raise ConfigurationError(
                f"the result of {snapshot.stage} could not be recorded in {root}: {error}; "
                "it is in the run cache: run again when `dvc status` works"
            ) from error


def _record(repo: Repo, root: Path, snapshot: Snapshot, entry: dict[str, Any]) -> Recorded:
    stage = find_stage(repo, snapshot.stage)
    try:
        key = key_of(stage)
    except DvcException:  # an input is gone
        key = ""
    if entry_digest(entry) != snapshot.key:
        raise Interrupted(
            f"inputs of {snapshot.stage} changed in {snapshot.folder}, where its job ran, so its result is not "
            "accepted. A replace over hidden folders does this. Run again"
        )
    if key != snapshot.key:
        return Recorded(
            tuple(differences(to_single_stage_lockfile(stage), entry, parts=["deps"]))
            or (f"inputs of {snapshot.stage}",)
        )
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
    cached = [out for out in entry["outs"] if any(one.def_path == out["path"] and one.use_cache for one in stage.outs)]
    said: list[str] = []
    if remove_damaged_outs(root, said.append, cached):
        raise Interrupted("; ".join(said))
    with repo.scm_context(quiet=True):
        for out in stage.outs:
            if out.use_cache:
                out.ignore()  # by git, as `dvc repro` has it
            else:
                _copy(snapshot.folder / out.def_path, root / out.def_path)
        # In place of DVC's own writer, which a kill would leave with half of the file.
        edit_lock(root, lambda stages: _put_in_order(stages, stage.name, to_single_stage_lockfile(stage), _order(repo)))
    return Recorded()


def _order(repo: Repo) -> list[str]:
    """Of the stages, as `dvc repro` comes to them."""
    return [stage.name for stage in plan_repro(repo.index.graph) if isinstance(stage, PipelineStage)]


def _put_in_order(stages: dict[str, Any], name: str, entry: dict[str, Any], order: Sequence[str]) -> None:
    """An entry that is there is replaced; siblings are recorded as they end, so a new one goes
    before the first that `dvc repro` would have come to later."""
    later = set(order[order.index(name) + 1 :])
    place = next((number for number, other in enumerate(stages) if other in later), None)
    if name in stages or place is None:
        stages[name] = entry
    else:
        stages.insert(place, name, entry)  # type: ignore[attr-defined]  # ruamel's mapping has it


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target)
    else:
        shutil.copy2(source, target)
