"""How does the result of a job come into the person's folder? One writer, and only where inputs and knobs there are still those that ran.

Otherwise nothing is written: the result stays in DVC's cache and run cache, the stage shows as changed, and taking the edit back brings it without
running. So `dvc.lock` never binds a new value to an old output.
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
from dvc.utils.serialize import modify_yaml

from posttrain.exits import ConfigurationError, DataError, Interrupted
from posttrain.provenance.snapshot import LOCK_PATIENCE_S, Snapshot, find_stage, key_of, lock_entries, lock_entry, locked


@dataclass(frozen=True, slots=True)
class Landing:
    """`changed` names what was edited since the snapshot was taken, as a person would: paths and `params.yaml:key`. Empty where the result landed."""

    changed: tuple[str, ...] = ()

    @property
    def has_landed(self) -> bool:
        return not self.changed


def land(root: Path, snapshot: Snapshot) -> Landing:
    """Add the entry of the snapshot's stage to `dvc.lock` in `root`, and check its outputs out there.

    Raises DataError where the snapshot has no finished result, or DVC's cache not all of it, ConfigurationError where DVC refuses `root`,
    Interrupted where another `dvc` works there for too long.
    """
    entry = lock_entry(snapshot.folder, snapshot.stage)
    if entry is None or "outs" not in entry:
        raise DataError(f"{snapshot.folder} has no result of {snapshot.stage} to land: the job did not end well, or was not run there")
    deadline = time.monotonic() + LOCK_PATIENCE_S
    while True:
        try:
            with locked(root) as repo:
                return _land(repo, root, snapshot, entry)
        except LockError as error:  # of a stage that runs there, and has let go of the folder's lock meanwhile
            if time.monotonic() > deadline:
                raise Interrupted(
                    f"another dvc runs a stage in {root} ({error}), so the result of {snapshot.stage} could not be recorded; it is in the run cache: "
                    "run again when that dvc is done"
                ) from error
            time.sleep(0.5)
        except DvcException as error:
            raise ConfigurationError(
                f"the result of {snapshot.stage} could not be recorded in {root}: {error}; it is in the run cache: run again when `dvc status` works"
            ) from error


def _land(repo: Repo, root: Path, snapshot: Snapshot, entry: dict[str, Any]) -> Landing:
    stage = find_stage(repo, snapshot.stage)
    try:
        key = key_of(stage)
    except DvcException:  # an input is gone
        key = ""
    if key != snapshot.key:
        return Landing(tuple(_differences(to_single_stage_lockfile(stage), entry)) or (f"inputs of {snapshot.stage}",))
    StageLoader.fill_from_lock(stage, entry)
    try:
        gone = stage.checkout(force=True).get("failed", [])
    except FileNotFoundError as error:
        gone = [error.filename]
    if gone:
        raise DataError(f"{', '.join(map(str, gone))} of {stage.name} went from DVC's cache before it could be recorded (`dvc gc`?): run again")
    with repo.scm_context(quiet=True):
        for out in stage.outs:
            if out.use_cache:
                out.ignore()  # by git, as `dvc repro` has it
            else:
                _copy(snapshot.folder / out.def_path, root / out.def_path)
        there = tuple(lock_entries(root))
        stage.dump(update_pipeline=False)
        if stage.name not in there:
            _put_in_order(repo, root, stage.name, there)
    return Landing()


def _put_in_order(repo: Repo, root: Path, name: str, others: Sequence[str]) -> None:
    """DVC appends a new entry, and siblings land as they end: it goes before the first of those that `dvc repro` would have come to later."""
    order = [stage.name for stage in plan_repro(repo.index.graph) if isinstance(stage, PipelineStage)]
    later = set(order[order.index(name) + 1 :])
    place = next((number for number, other in enumerate(others) if other in later), None)
    if place is not None:
        with modify_yaml(str(root / "dvc.lock")) as lock:
            lock["stages"].insert(place, name, lock["stages"].pop(name))


def _differences(now: dict[str, Any], then: dict[str, Any]) -> list[str]:
    """The inputs and knobs that two lock entries have differently."""
    found = ["dvc.yaml"] if now["cmd"] != then["cmd"] else []
    hashes_now, hashes_then = ({dep["path"]: dep.get("md5") for dep in entry.get("deps", [])} for entry in (now, then))
    found += [path for path in sorted({*hashes_now, *hashes_then}) if hashes_now.get(path) != hashes_then.get(path)]
    for file in sorted({*now.get("params", {}), *then.get("params", {})}):
        knobs_now, knobs_then = now.get("params", {}).get(file, {}), then.get("params", {}).get(file, {})
        found += [f"{file}:{key}" for key in sorted({*knobs_now, *knobs_then}) if knobs_now.get(key) != knobs_then.get(key)]
    return found


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target)
    else:
        shutil.copy2(source, target)
