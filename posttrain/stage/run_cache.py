"""Runs that DVC remembers (`runs` beside its objects), and how one of them is forgotten."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dvc.repo import Repo

from posttrain.stage.lockfile import load_as_dvc


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
    with Repo(str(root)) as repo:
        folder = Path(repo.cache.legacy.path) / "runs"
    written: dict[Path, float] = {}
    for path in folder.glob("*/*/*"):
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
