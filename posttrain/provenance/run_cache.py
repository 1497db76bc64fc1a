"""DVC's run cache: each tree has its own, and only verified runs are shared.

DVC records a run as soon as it has hashed the inputs, so a false one stands there until a watchdog
takes it out; another tree with the same cache could take it meanwhile. `runs` beside DVC's objects
is therefore each tree's own. Where the cache lies outside of the tree, for others to share it
(`dvc cache dir`), the tree gets a folder `clones/NAME` in it, which links to the common objects,
and `.dvc/config.local` names that folder. A run that agrees with its receipt is copied to
`verified` beside the common objects with its record, and every tree imports what it finds there.
"""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from posttrain.provenance.cache_integrity import VERIFIED, VERIFIED_COSTS, cache_folder, common_cache
from posttrain.provenance.costs import append_cost, read_costs
from posttrain.provenance.fingerprint import load_as_dvc
from posttrain.provenance.run_records import all_records, find_record, is_ours
from posttrain.runtime.state import tree_name


def separate_run_cache(root: Path, log: Callable[[str], None]) -> None:
    """Give the tree a run cache of its own, where others share its cache."""
    cache = cache_folder(root)
    if cache.is_relative_to(root.resolve()) or cache.name == tree_name(root):
        return
    common = common_cache(cache)
    own = common / "clones" / tree_name(root)
    link_cache(own, common)
    from dvc.config import Config

    with Config(str(root.resolve() / ".dvc")).edit("local") as settings:
        settings["cache"]["dir"] = str(own)
    log(
        f"DVC's cache {common} is shared: from the next dvc on this tree keeps its runs in {own} until they are "
        "verified, and shares the objects as before (.dvc/config.local)"
    )


def link_cache(folder: Path, common: Path) -> None:
    """Make `folder` a cache of the same objects with runs of its own."""
    for path in (common / "files", folder):
        path.mkdir(parents=True, exist_ok=True)
    if not (folder / "files").is_symlink():
        (folder / "files").symlink_to(common / "files")


def publish_run(root: Path, stage: str, entry: Mapping[str, Any]) -> None:
    """Share a run that agrees with its receipt, with its record."""
    cache, run = cache_folder(root), run_path(entry)
    common = common_cache(cache)
    verified, cost = common / VERIFIED, find_record(read_costs(root), stage, entry)
    # A DVC that began before the tree had a run cache of its own has written the common one.
    written = next((path for place in (cache, common) if (path := place / "runs" / run).is_file()), None)
    if cost is None or written is None or (verified / run).exists():
        return
    (verified / run).parent.mkdir(parents=True, exist_ok=True)
    append_cost(cost, verified / VERIFIED_COSTS)  # first: a run that is there has its record
    _copy_whole(written, verified / run)


def import_verified_runs(root: Path) -> None:
    """Copy the verified runs of other trees into this one's run cache."""
    cache = cache_folder(root)
    verified = common_cache(cache) / VERIFIED
    for path in verified.glob("*/*/*"):
        own = cache / "runs" / path.relative_to(verified)
        if not own.exists():
            own.parent.mkdir(parents=True, exist_ok=True)
            _copy_whole(path, own)


def run_path(entry: Mapping[str, Any]) -> Path:
    """Path of a run below `runs`: DVC's two hashes of it, without and with those of its outputs."""
    inputs = {**entry, "outs": [out["path"] for out in entry.get("outs") or ()]}
    key, value = (
        hashlib.sha256(json.dumps(_without_sizes(one), sort_keys=True).encode()).hexdigest() for one in (inputs, entry)
    )
    return Path(key[:2], key, value)


def read_runs(root: Path) -> list[dict[str, Any]]:
    """Runs of the run cache, each as an entry of `dvc.lock`; the newest, which DVC takes, first."""
    return [run for _, run in _runs(root, newer_than=0.0)]


def remove_unrecorded_runs(root: Path, *, newer_than: float = 0.0) -> None:
    """Remove the runs that no stage recorded, such as those of `dvc commit`: a hit would bring back
    results of unknown inputs."""
    records = all_records(root)
    remove_runs(root, lambda run: is_ours(run) and find_record(records, None, run) is None, newer_than=newer_than)


def remove_runs(root: Path, is_false: Callable[[Mapping[str, Any]], bool], *, newer_than: float) -> None:
    """Remove the runs that are false, of those written since a moment (seconds since 1970)."""
    for path in [path for path, run in _runs(root, newer_than=newer_than) if is_false(run)]:
        path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # another run with these inputs lies there
            path.parent.rmdir()  # DVC cannot read an empty one


def _runs(root: Path, *, newer_than: float) -> Iterator[tuple[Path, dict[str, Any]]]:
    written: dict[Path, float] = {}
    for path in (cache_folder(root) / "runs").glob("*/*/*"):
        with contextlib.suppress(FileNotFoundError):
            written[path] = path.stat().st_mtime
    for path in sorted(written, key=written.__getitem__, reverse=True):
        if written[path] < newer_than - 1:  # a disk may keep whole seconds
            return
        try:
            run = load_as_dvc(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue  # another process removed it, or DVC will find it damaged itself
        if isinstance(run, dict):
            yield path, run


def _without_sizes(part: Any) -> Any:
    if isinstance(part, list):
        return [_without_sizes(one) for one in part]
    if isinstance(part, Mapping):
        return {name: _without_sizes(value) for name, value in part.items() if name not in ("size", "nfiles")}
    return part


def _copy_whole(source: Path, target: Path) -> None:
    """Copy with its time: of several runs with the same inputs DVC takes the newest."""
    partial = target.parents[2] / f".{target.name}.{os.getpid()}"  # beside the runs DVC would read it
    with contextlib.suppress(FileNotFoundError):  # removed meanwhile, by `dvc gc` or another process
        shutil.copy2(source, partial)
        partial.replace(target)
