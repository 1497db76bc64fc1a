"""DVC's run cache: each tree has its own, and only settled runs are shared.

DVC remembers a run as soon as it has hashed the inputs, so that an edit made a moment before stands
there until a guard takes it out; another tree with the same cache could take it meanwhile. `runs`
beside DVC's objects is therefore each tree's own. Where the cache lies outside of the tree, for
others to share it (`dvc cache dir`), the tree is given a folder `clones/NAME` in it, which links to
the common objects, and `.dvc/config.local` names that folder. A run that was held against its
receipt is copied to `settled` beside the common objects with the record of it, and every tree takes
over what it finds there.
"""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from posttrain.provenance.cache_integrity import SETTLED, SETTLED_COSTS, cache_folder, common_cache
from posttrain.provenance.costs import append_cost, read_costs
from posttrain.provenance.lockfile import load_as_dvc
from posttrain.provenance.run_records import all_records, find_record, is_ours
from posttrain.runtime.state import tree_name


def own_run_cache(root: Path, tell: Callable[[str], None]) -> None:
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
    tell(
        f"DVC's cache {common} is shared: from the next dvc on this tree keeps its runs in {own}, until they have "
        "been held against what was read, and shares the objects as before (.dvc/config.local)"
    )


def link_cache(folder: Path, common: Path) -> None:
    """Make `folder` a cache of the same objects with runs of its own."""
    for path in (common / "files", folder):
        path.mkdir(parents=True, exist_ok=True)
    if not (folder / "files").is_symlink():
        (folder / "files").symlink_to(common / "files")


def publish_run(root: Path, stage: str, entry: Mapping[str, Any]) -> None:
    """Share a run that was held against its receipt, with the record of it."""
    cache, run = cache_folder(root), run_path(entry)
    common = common_cache(cache)
    settled, cost = common / SETTLED, find_record(read_costs(root), stage, entry)
    # A DVC that began before the tree had a run cache of its own has written the common one.
    written = next((path for place in (cache, common) if (path := place / "runs" / run).is_file()), None)
    if cost is None or written is None or (settled / run).exists():
        return
    (settled / run).parent.mkdir(parents=True, exist_ok=True)
    append_cost(cost, settled / SETTLED_COSTS)  # first: a run that is there has its record
    _copy_whole(written, settled / run)


def take_over_runs(root: Path) -> None:
    """Copy the settled runs of other trees into this one's run cache."""
    cache = cache_folder(root)
    settled = common_cache(cache) / SETTLED
    for path in settled.glob("*/*/*"):
        own = cache / "runs" / path.relative_to(settled)
        if not own.exists():
            own.parent.mkdir(parents=True, exist_ok=True)
            _copy_whole(path, own)


def run_path(entry: Mapping[str, Any]) -> Path:
    """The file of a run below `runs`, from its entry as `dvc.lock` has it: DVC's own hashes of it,
    without and with the hashes of its outputs."""
    inputs = {**entry, "outs": [out["path"] for out in entry.get("outs") or ()]}
    key, value = (
        hashlib.sha256(json.dumps(_without_sizes(one), sort_keys=True).encode()).hexdigest() for one in (inputs, entry)
    )
    return Path(key[:2], key, value)


def forget_unrecorded_runs(root: Path, *, newer_than: float = 0.0) -> int:
    """Remove the runs that nobody ran, which `dvc commit` writes, too: a hit would bring back what
    nobody knows."""
    records = all_records(root)
    return forget_runs(
        root, lambda run: is_ours(run) and find_record(records, None, run) is None, newer_than=newer_than
    )


def read_runs(root: Path) -> list[dict[str, Any]]:
    """What the run cache remembers, each as an entry of `dvc.lock`; the newest first, which is the
    one that DVC takes."""
    return [run for _, run in _runs(root, newer_than=0.0)]


def forget_runs(root: Path, is_false: Callable[[Mapping[str, Any]], bool], *, newer_than: float) -> int:
    """Remove the runs written since a moment (seconds since 1970) of which `is_false` says so;
    gives their number."""
    false = [path for path, run in _runs(root, newer_than=newer_than) if is_false(run)]
    for path in false:
        path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # another run with these inputs lies there
            path.parent.rmdir()  # DVC cannot read an empty one
    return len(false)


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
            continue  # another process took it away, or DVC will find it damaged itself
        if isinstance(run, dict):
            yield path, run


def _without_sizes(part: Any) -> Any:
    if isinstance(part, list):
        return [_without_sizes(one) for one in part]
    if isinstance(part, Mapping):
        return {name: _without_sizes(value) for name, value in part.items() if name not in ("size", "nfiles")}
    return part


def _copy_whole(source: Path, target: Path) -> None:
    """With its time: of several runs with the same inputs DVC takes the newest."""
    partial = target.parents[2] / f".{target.name}.{os.getpid()}"  # beside the runs DVC would read it
    with contextlib.suppress(FileNotFoundError):  # removed meanwhile, by `dvc gc` or its finder
        shutil.copy2(source, partial)
        partial.replace(target)
