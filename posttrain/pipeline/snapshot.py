"""A job runs on a frozen copy of the tree, so that what a person edits meanwhile can never be bound
to its result.

DVC hashes deps and params when a command is over. In the person's own folder that is too late: an
edit made while the stage ran would be recorded with the old output. A snapshot holds every file
that git tracks or a stage declares, uncommitted edits included, as it was when it was taken, and
the stage's inputs from DVC's cache. Nobody edits it, so what DVC records in it is what ran.
"""

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dvc.exceptions import DvcException
from dvc.lock import LockError
from dvc.output import Output
from dvc.repo import Repo
from dvc.stage import PipelineStage
from dvc.stage.cache import _can_hash
from dvc.stage.serialize import to_single_stage_lockfile

from posttrain.provenance.cache_integrity import SETTLED, common_cache
from posttrain.provenance.fingerprint import files_below, links_to_folders
from posttrain.provenance.frozen_copy import protect
from posttrain.provenance.lockfile import acquire_patiently
from posttrain.provenance.run_cache import link_cache
from posttrain.provenance.run_records import RECORDS
from posttrain.runtime.exits import ConfigurationError
from posttrain.runtime.state import STATE_DIR, WANDB, private_folder

CACHE_OF_DVC = Path(".dvc/config.local")  # ignored by git: where DVC's cache lies is each machine's own
FROZEN_KEY = STATE_DIR / "key"  # of the inputs, for the job to hold against what DVC records there
FROZEN = "[core]\n    no_scm = true\n    analytics = false\n"  # a tree without git, of which DVC tells nobody


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`key` names the command, the content of every input and the values of every knob: 64 hex
    digits, equal wherever they are equal. `has_run`: a run with these inputs is in DVC's run cache.
    `left_out`: files of the tree that git does not track and no stage declares."""

    folder: Path
    stage: str
    key: str
    has_run: bool
    left_out: tuple[str, ...] = ()


def freeze(root: Path, stage: str, folder: Path, *, state: Path | None = None) -> Snapshot:
    """Copy the tree of `root` into `folder`, which must not exist, with the inputs of one stage.

    Checkpoints lie in `state` (by default the root's own) and are named by their inputs, so that a
    job that was interrupted is gone on with from any snapshot of the same inputs; so do runs of
    W&B, which outlive the snapshot. Raises ConfigurationError where an input is neither there nor
    in DVC's cache, or there is no such stage, Interrupted where another `dvc` holds the root's lock
    for too long.
    """
    root = root.resolve()
    folder.mkdir(parents=True)
    kept = [(state or root / STATE_DIR).resolve() / name for name in ("checkpoints", WANDB)]
    for place in kept:
        private_folder(place)
    try:
        with locked(root) as repo:  # DVC writes dvc.lock in place
            cache = common_cache(Path(repo.cache.legacy.path))
            files, left_out = _files_of(root, repo)
            for path in files:
                target = folder / path
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / path, target, follow_symlinks=False)
        (folder / STATE_DIR).mkdir(exist_ok=True)
        for place in kept:
            (folder / STATE_DIR / place.name).symlink_to(place)
        configure_dvc(folder, "cache", FROZEN)
        link_cache(folder / ".dvc/cache", cache)
        with Repo(str(folder)) as repo, repo.lock:
            use_settled_runs(repo)
            found = find_stage(repo, stage)
            _bring_inputs(repo, found, root, folder)
            key = key_of(found)
            has_run = (
                _can_hash(found) and repo.stage_cache._load(found) is not None
            )  # DVC keeps no run of a stage that reads nothing
        (folder / FROZEN_KEY).write_text(key, encoding="utf-8")
        protect(folder, [out.def_path for out in found.outs])
        return Snapshot(folder, stage, key, has_run, left_out)
    except DvcException as error:
        raise ConfigurationError(
            f"{stage} cannot be prepared: {error}. Without its inputs it cannot run; `dvc status` says more"
        ) from error


@contextlib.contextmanager
def locked(root: Path) -> Iterator[Repo]:
    """The repository, with DVC's own lock on its folder. Raises Interrupted where another `dvc`
    does not let go of it."""
    with contextlib.ExitStack() as held:
        repo = held.enter_context(Repo(str(root)))
        acquire_patiently(lambda: held.enter_context(repo.lock), LockError, root)
        yield repo


def copy_snapshot(snapshot: Snapshot, folder: Path) -> None:
    """Another of the same, for an attempt of its own; what lies in DVC's cache is linked again and
    takes no room."""

    def copy(source: str, target: str) -> str:
        if os.lstat(source).st_nlink > 1:
            os.link(source, target)
        else:
            shutil.copy2(source, target, follow_symlinks=False)
        return target

    shutil.copytree(snapshot.folder, folder, symlinks=True, copy_function=copy)


def configure_dvc(folder: Path, cache: Path | str, more: str = "") -> None:
    """The tree in `folder` takes what it needs from `cache` (relative to `.dvc`) by links: no
    second copy of a model."""
    (folder / CACHE_OF_DVC).parent.mkdir(exist_ok=True)
    (folder / CACHE_OF_DVC).write_text(
        f"{more}[cache]\n    dir = {cache}\n    type = hardlink,symlink\n", encoding="utf-8"
    )


def use_settled_runs(repo: Repo) -> Path | None:
    """Of a snapshot, whose own run cache holds what DVC has just recorded there: read and write the
    runs that trees share. Gives their folder, None where the cache is the snapshot's own."""
    cache = Path(repo.cache.legacy.path)
    if not (cache / "files").is_symlink():
        return None
    settled = common_cache(cache) / SETTLED
    settled.mkdir(exist_ok=True)
    repo.stage_cache.cache_dir = str(settled)
    return settled


def find_stage(repo: Repo, name: str) -> PipelineStage:
    """The stage of `dvc.yaml` in the repository's root. Raises ConfigurationError where there is
    none."""
    found = next(
        (stage for stage in repo.index.stages if isinstance(stage, PipelineStage) and stage.name == name), None
    )
    if found is None:
        raise ConfigurationError(f"dvc.yaml has no stage {name!r}")
    return found


def outs_holding(repo: Repo, paths: Iterable[str]) -> Iterator[Output]:
    """What some stage makes and is one of the paths, or a folder above one."""
    wanted = [Path(path) for path in paths]
    for maker in repo.index.stages:
        for out in maker.outs:
            if any(path == Path(out.def_path) or Path(out.def_path) in path.parents for path in wanted):
                yield out


def key_of(stage: PipelineStage) -> str:
    """As `Snapshot.key` has it, of the files as they are now. Raises DvcException where an input is
    missing."""
    stage.save_deps()
    return entry_digest(to_single_stage_lockfile(stage))


def entry_digest(entry: Mapping[str, Any]) -> str:
    """The same, of an entry of `dvc.lock`."""
    content = {name: entry[name] for name in ("cmd", "deps", "params") if name in entry}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _files_of(root: Path, repo: Repo) -> tuple[list[Path], tuple[str, ...]]:
    """What git tracks, as it is now, and of the rest what a stage declares; and what is left out: a
    person's notes and keys are nobody's input, records of earlier runs go without saying, and DVC
    does not hash what lies behind a link to a folder in a dep."""
    declared = [Path(dep.def_path) for stage in repo.index.stages for dep in stage.deps if dep.def_path]
    own = {Path(name) for name in ("dvc.yaml", "dvc.lock", "params.yaml", ".dvcignore", ".gitignore")}
    links = {Path(link) for link in links_to_folders(root, {dep.as_posix() for dep in declared})}
    unseen = {link for link in links if not any(dep.is_relative_to(link) for dep in declared)}
    tracked = _listed(root, "--cached")
    kept = [path for path in tracked if path != RECORDS and path not in unseen]
    left_out = [path for path in tracked if path in unseen]
    for path in _listed(root, "--others", "--exclude-standard"):
        if path == RECORDS:
            continue
        is_wanted = path not in unseen and (
            path in own or path.parts[0] == ".dvc" or any(path.is_relative_to(dep) for dep in declared)
        )
        (kept if is_wanted else left_out).append(path)
    return list(dict.fromkeys(kept)), tuple(path.as_posix() for path in left_out)


def _listed(root: Path, *which: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--deduplicate", *which], cwd=root, capture_output=True, check=False
    )
    if listed.returncode:
        raise ConfigurationError(
            f"git lists no files of {root} ({listed.stderr.decode().strip()}): a snapshot is of a git repository"
        )
    names = filter(None, os.fsdecode(listed.stdout).split("\0"))
    return [Path(name) for name in names if (root / name).is_symlink() or (root / name).is_file()]


def _bring_inputs(repo: Repo, stage: PipelineStage, root: Path, folder: Path) -> None:
    """What other stages made comes from the cache, as `dvc.lock` has it; an input that nobody makes
    and git ignores is copied."""
    missing = {dep.def_path for dep in stage.deps if dep.def_path and not (folder / dep.def_path).exists()}
    for out in outs_holding(repo, missing):
        out.checkout()
    for path in missing:
        if not (folder / path).exists() and (root / path).exists():
            for file in files_below(root, path):
                (folder / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / file, folder / file)
            if (root / path).is_dir():
                (folder / path).mkdir(parents=True, exist_ok=True)  # an empty one, too
