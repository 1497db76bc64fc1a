"""Moves a stage's inputs and its one result between DVC's cache and run cache and S3, in the layout
of a DVC remote.

Anybody's DVC with a remote of the same address reads it. The whole cache is never listed or moved.
DVC's own transfers say no more than that they failed, and count a folder whose listing did not come
for want of an answer as absent; so S3 is then asked what is wrong, and the transfer made again. The
working folder is the repository's root: DVC takes the paths of old runs from there.
"""

import contextlib
import copy
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

from botocore.exceptions import BotoCoreError, ClientError
from dvc.exceptions import CollectCacheError, DvcException
from dvc.output import Output
from dvc.repo import Repo
from dvc.stage import PipelineStage
from dvc.stage.cache import _can_hash, _get_cache_hash, _get_stage_hash
from dvc_data.hashfile.transfer import TransferResult

from posttrain.dispatch.settings import S3Remote
from posttrain.pipeline.remote.object_store import CONNECT_S, READ_S, ObjectStore, Unreachable
from posttrain.pipeline.snapshot import outs_holding
from posttrain.provenance.fingerprint import load_as_dvc
from posttrain.runtime.exits import ConfigurationError, DataError, Interrupted

NAME = "posttrain-s3"
FOLDER = "dvc"  # under the remote's prefix
_NUM_TRIES = 3  # of a transfer that fails though S3 answers


def config_section(remote: S3Remote) -> str:
    """Section of DVC's config: the address, and no keys. Hashes of received files are computed
    again."""
    given = {
        "url": f"s3://{remote.bucket}/{remote.prefix}{FOLDER}",
        "endpointurl": remote.endpoint_url,
        "region": remote.region,
    }
    lines = [f"    {name} = {value}\n" for name, value in given.items() if value is not None]
    return (
        f"['remote \"{NAME}\"']\n{''.join(lines)}    verify = true\n    connect_timeout = {CONNECT_S}\n    "
        f"read_timeout = {READ_S}\n"
    )


def refuse_without_run_cache(stage: PipelineStage) -> None:
    """Raises ConfigurationError of a stage whose result could not come back, because the run cache
    keeps none, and DVC's error where an input is missing."""
    stage.save_deps()
    if not _can_hash(stage):
        raise ConfigurationError(
            f"{stage.name} has no deps or no outs, or is always run: DVC's run cache keeps no result of such a stage, "
            "and none could come back from S3. Give it both in dvc.yaml, or run it on a target that shares a disk"
        )


def push_inputs(repo: Repo, stage: PipelineStage, store: ObjectStore) -> frozenset[Path]:
    """Push the inputs that lie in DVC's cache; gives their paths. All others are files of the
    tree."""
    outs = [
        out for out in outs_holding(repo, _inputs(stage)) if out.use_cache and out.hash_info and not out.changed_cache()
    ]
    objects = {found for out in outs for used in out.get_used_objs().values() for found in used}
    if objects:
        _move(store, lambda: repo.cloud.push(objects, remote=NAME))
    return frozenset(Path(out.def_path) for out in outs)


def pull_inputs(repo: Repo, stage: PipelineStage, store: ObjectStore) -> None:
    """Pull the inputs that `push_inputs` of the same tree has pushed, into DVC's cache and the
    tree."""
    missing = [path for path in _inputs(stage) if not Path(path).exists()]
    for out in [out for out in outs_holding(repo, missing) if out.use_cache]:
        with contextlib.suppress(CollectCacheError):
            _pull(repo, store, [out])
        if not out.hash_info or out.changed_cache():
            raise Interrupted(
                f"{out.def_path}, an input of {stage.name}, is not whole in {store.remote.url}/{FOLDER}: something "
                "deletes there. It is pushed again with the next attempt"
            )
        out.checkout()


def push_result(repo: Repo, stage: PipelineStage, store: ObjectStore) -> None:
    """Push the result of a stage that has just run. The entry goes last: a reader that finds it
    finds all files that it names."""
    stage.save_deps()
    key = _get_stage_hash(stage)
    entry = repo.stage_cache._load(stage)
    made = repo.stage_cache._create_stage(entry, wdir=stage.wdir)
    objects = {found for used in made.get_used_objs().values() for found in used}
    _move(store, lambda: repo.cloud.push(objects, remote=NAME))
    value = _get_cache_hash(entry)
    store.put(Path(repo.stage_cache._get_cache_path(key, value)), f"{_runs_of(key)}{value}")


def fetch_result(repo: Repo, stage: PipelineStage, store: ObjectStore) -> bool:
    """Fetch a result into DVC's cache and run cache; False where S3 has no whole result of a run
    with the stage's present inputs.

    Raises DataError where the entry of that name is of another stage or other inputs.
    """
    stage.save_deps()
    if not _can_hash(stage):
        return False
    key = _get_stage_hash(stage)
    found = store.list(_runs_of(key))
    if not found:
        return False
    name = max(found, key=lambda one: one.changed_at).name
    _take_entry(repo, key, name, store)
    made = repo.stage_cache._create_stage(repo.stage_cache._load(stage), wdir=stage.wdir)
    try:
        _pull(repo, store, made.outs)
    except CollectCacheError:
        return False
    return bool(made.outs_cached())


def _take_entry(repo: Repo, key: str, name: str, store: ObjectStore) -> None:
    """Fetch an entry of the run cache. Outs are written where it says, so its own key must be the
    one that it was found by."""
    value = name.rpartition("/")[2]
    target = Path(repo.stage_cache._get_cache_path(key, value))
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parents[2], prefix=".run-") as folder:
        copied = Path(folder) / "entry"
        store.get(name, copied)
        try:
            content = load_as_dvc(copied.read_text(encoding="utf-8"))
            is_right = re.fullmatch("[0-9a-f]{64}", value) and _get_cache_hash(copy.deepcopy(content), key=True) == key
        except (ValueError, TypeError, KeyError, AttributeError):
            is_right = False
        if not is_right:
            raise DataError(
                f"{store.remote.url}/{name} is no record of the run that its name says: delete it, "
                "and see who may write there"
            )
        os.replace(copied, target)


def _inputs(stage: PipelineStage) -> list[str]:
    return [dep.def_path for dep in stage.deps if dep.def_path]


def _pull(repo: Repo, store: ObjectStore, outs: list[Output]) -> None:
    """Pull outputs. The names of a folder's files are known once its listing is here, so naming
    them moves something already."""

    def pull() -> TransferResult:
        objects = {found for out in outs for used in out.get_used_objs(remote=NAME).values() for found in used}
        result: TransferResult = repo.cloud.pull(objects, remote=NAME)
        return result

    _move(store, pull)


def _move(store: ObjectStore, move: Callable[[], TransferResult]) -> None:
    num_tries = 0

    def try_once() -> None:
        nonlocal num_tries
        cause: Exception | None = None
        try:
            if not move().failed:
                return
        except (BotoCoreError, ClientError, OSError, DvcException) as error:
            cause = error
        store.check()
        num_tries += 1
        if num_tries < _NUM_TRIES:
            raise Unreachable(f"{store.remote.url} lost a transfer") from cause
        if isinstance(cause, CollectCacheError):
            raise cause
        why = type(cause).__name__ if cause else "DVC's log says more"
        raise Interrupted(
            f"files did not get to or from {store.remote.url} in {_NUM_TRIES} tries ({why}), "
            "though S3 answers; run again"
        ) from cause

    store.patiently(try_once)


def _runs_of(key: str) -> str:
    return f"{FOLDER}/runs/{key[:2]}/{key}/"
