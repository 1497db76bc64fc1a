"""Snapshot: a frozen copy of the tree that a job runs on, so that an edit made meanwhile can never
be bound to its result.

DVC hashes deps and params when a command is over. In the person's own folder that is too late: an
edit made while the stage ran would be recorded with the old output. A snapshot holds every file
that git tracks or a stage declares, uncommitted edits included, and the stage's inputs from DVC's
cache; of tests, docs, benchmarks and reports it holds what a stage declares. Nobody edits it, so
what DVC records in it is what ran.
"""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dvc.exceptions import DvcException
from dvc.lock import LockError
from dvc.output import Output
from dvc.repo import Repo
from dvc.stage import PipelineStage
from dvc.stage.cache import _can_hash
from dvc.stage.serialize import to_single_stage_lockfile

from posttrain.provenance.cache_integrity import VERIFIED, common_cache
from posttrain.provenance.fingerprint import cache_key, files_below
from posttrain.provenance.frozen_copy import freeze_files, make_read_only
from posttrain.provenance.lockfile import retry_while_locked
from posttrain.provenance.run_cache import link_cache
from posttrain.provenance.run_records import RECORDS
from posttrain.runtime.exits import ConfigurationError
from posttrain.runtime.state import STATE_DIR, WANDB, private_folder

CACHE_OF_DVC = Path(".dvc/config.local")  # ignored by git: where DVC's cache lies is each machine's own
FROZEN_KEY = STATE_DIR / "key"  # of the inputs, for the job to compare with what DVC records there
# folders of which a job reads what a stage declares, and nothing else
_FOR_PEOPLE = ("benchmarks", "docs", "reports", "tests")
FROZEN = "[core]\n    no_scm = true\n    analytics = false\n"  # a tree without git, of which DVC reports nothing


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`key` is the cache key of the inputs (`fingerprint.cache_key`). `has_run`: a run with these
    inputs is in DVC's run cache."""

    folder: Path
    stage: str
    key: str
    has_run: bool


def freeze(root: Path, stage: str, folder: Path, *, state: Path | None = None) -> Snapshot:
    """Copy the tree of `root` into `folder`, which must not exist, with the inputs of one stage.

    Checkpoints lie in `state` (by default the root's own) and are named by their inputs, so that a
    job that was interrupted is resumed from any snapshot of the same inputs; so do runs of W&B,
    which outlive the snapshot. Raises ConfigurationError where an input is neither there nor in
    DVC's cache, or there is no such stage, Interrupted where another `dvc` has the root's lock for
    too long.
    """
    root = root.resolve()
    folder.mkdir(parents=True)
    try:
        with locked(root) as repo:  # DVC writes dvc.lock in place
            cache = common_cache(Path(repo.cache.legacy.path))
            freeze_files(root, folder, _files_of(root, repo), is_writable=True)  # by DVC, until the inputs are there
        (folder / STATE_DIR).mkdir(exist_ok=True)
        for name in ("checkpoints", WANDB):
            kept = private_folder((state or root / STATE_DIR).resolve() / name)
            (folder / STATE_DIR / name).symlink_to(kept)
        configure_dvc(folder, "cache", FROZEN)
        link_cache(folder / ".dvc/cache", cache)
        # A repository of its own: DVC hashes there what was frozen, and not the tree.
        with Repo(str(folder)) as repo, repo.lock:
            use_verified_runs(repo)
            found = find_stage(repo, stage)
            _bring_inputs(repo, found, root, folder)
            key = stage_key(found)
            # DVC keeps no run of a stage that reads nothing.
            has_run = _can_hash(found) and repo.stage_cache._load(found) is not None
        (folder / FROZEN_KEY).write_text(key, encoding="utf-8")
        make_read_only(folder, [out.def_path for out in found.outs])
        return Snapshot(folder, stage, key, has_run)
    except DvcException as error:
        raise ConfigurationError(
            f"{stage} cannot be prepared: {error}. Without its inputs it cannot run; `dvc status` says more"
        ) from error


@contextlib.contextmanager
def locked(root: Path) -> Iterator[Repo]:
    """The repository, with DVC's own lock on its folder. Raises Interrupted where another `dvc`
    does not release it."""
    with contextlib.ExitStack() as stack:
        repo = stack.enter_context(Repo(str(root)))
        retry_while_locked(lambda: stack.enter_context(repo.lock), LockError, root)
        yield repo


def copy_snapshot(snapshot: Snapshot, folder: Path) -> None:
    """Copy it for an attempt of its own; files in DVC's cache are linked again and take no room."""

    def copy(source: str, target: str) -> str:
        if os.lstat(source).st_nlink > 1:
            os.link(source, target)
        else:
            shutil.copy2(source, target, follow_symlinks=False)
        return target

    shutil.copytree(snapshot.folder, folder, symlinks=True, copy_function=copy)


def configure_dvc(folder: Path, cache: Path | str, more: str = "") -> None:
    """Have the tree in `folder` link to files of `cache` (relative to `.dvc`): no second copy of a
    model."""
    config = folder / CACHE_OF_DVC
    config.parent.mkdir(exist_ok=True)
    config.write_text(f"{more}[cache]\n    dir = {cache}\n    type = hardlink,symlink\n", encoding="utf-8")


def use_verified_runs(repo: Repo) -> Path | None:
    """Have the repository of a snapshot, whose own run cache holds what DVC has just recorded
    there, read and write the runs that trees share. Gives their folder, None where the cache is the
    snapshot's own."""
    cache = Path(repo.cache.legacy.path)
    if not (cache / "files").is_symlink():
        return None
    verified = common_cache(cache) / VERIFIED
    verified.mkdir(exist_ok=True)
    repo.stage_cache.cache_dir = str(verified)
    return verified


def find_stage(repo: Repo, name: str) -> PipelineStage:
    """The stage of `dvc.yaml` in the repository's root. Raises ConfigurationError where there is
    none."""
    for stage in repo.index.stages:
        if isinstance(stage, PipelineStage) and stage.name == name:
            return stage
    raise ConfigurationError(f"dvc.yaml has no stage {name!r}")


def outs_holding(repo: Repo, paths: Iterable[str]) -> Iterator[Output]:
    """Outputs of stages that are one of the paths, or a folder above one."""
    wanted = [Path(path) for path in paths]
    for maker in repo.index.stages:
        for out in maker.outs:
            if any(path.is_relative_to(out.def_path) for path in wanted):
                yield out


def stage_key(stage: PipelineStage) -> str:
    """Cache key of the inputs as they are now. Raises DvcException where one is missing."""
    stage.save_deps()
    return cache_key(to_single_stage_lockfile(stage))


def _files_of(root: Path, repo: Repo) -> list[str]:
    """Files that git tracks outside `_FOR_PEOPLE`, and of the rest those that a stage declares: a
    person's notes and keys are nobody's input, and records of earlier runs are never one."""
    declared = {Path(dep.def_path) for stage in repo.index.stages for dep in stage.deps if dep.def_path}
    own = {Path(name) for name in ("dvc.yaml", "dvc.lock", "params.yaml", ".dvcignore", ".gitignore")}

    def is_declared(path: Path) -> bool:
        return path in own or path.parts[0] == ".dvc" or not declared.isdisjoint((path, *path.parents))

    def is_hashed(path: Path) -> bool:
        """DVC hashes nothing behind a link to a folder, but where a dep lies there."""
        is_link = (root / path).is_symlink() and (root / path).is_dir()
        return path != RECORDS and (not is_link or any(dep.is_relative_to(path) for dep in declared))

    tracked, others = _listed(root, "--cached"), _listed(root, "--others", "--exclude-standard")
    of_code = [path for path in tracked if path.parts[0] not in _FOR_PEOPLE or is_declared(path)]
    return [path.as_posix() for path in (*of_code, *filter(is_declared, others)) if is_hashed(path)]


def _listed(root: Path, *which: str) -> list[Path]:
    command = ["git", "ls-files", "-z", "--deduplicate", *which]
    listed = subprocess.run(command, cwd=root, capture_output=True, check=False)
    if listed.returncode:
        raise ConfigurationError(
            f"git lists no files of {root} ({listed.stderr.decode().strip()}): a snapshot is of a git repository"
        )
    names = filter(None, os.fsdecode(listed.stdout).split("\0"))
    return [Path(name) for name in names if (root / name).is_symlink() or (root / name).is_file()]


def _bring_inputs(repo: Repo, stage: PipelineStage, root: Path, folder: Path) -> None:
    """Check outputs of other stages out of the cache, by their hashes in `dvc.lock`, and what `dvc
    add` tracks in folders that the stage reads; copy inputs that no stage makes and git ignores."""
    missing = {dep.def_path for dep in stage.deps if dep.def_path and not (folder / dep.def_path).exists()}
    for out in outs_holding(repo, missing):
        out.checkout()
    deps = [dep.fs_path for dep in stage.deps if dep.def_path]
    for out in (out for maker in repo.index.stages if not isinstance(maker, PipelineStage) for out in maker.outs):
        if any(Path(out.fs_path).is_relative_to(dep) for dep in deps):
            out.checkout()
    for path in missing:
        if not (folder / path).exists() and (root / path).exists():
            freeze_files(root, folder, files_below(root, path), is_writable=True)
            if (root / path).is_dir():
                (folder / path).mkdir(parents=True, exist_ok=True)  # an empty one, too
