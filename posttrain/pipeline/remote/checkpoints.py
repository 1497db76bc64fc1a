"""Ships checkpoints to S3, where a job's next attempt, on another machine, finds them. Each sealed
one is a folder of objects, its marker the last of them.

The same order as on a disk: a checkpoint that was cut off has no marker, and a damaged one has
another hash than the marker says (`train/checkpointing.py` checks before anything is loaded).
Episodes that were paid for (`*.jsonl`, a line each) go along; their readers skip a line that was
cut off.
"""

from collections.abc import Iterator
from pathlib import Path, PurePath, PurePosixPath

from posttrain.pipeline.remote.object_store import ObjectStore
from posttrain.runtime.exits import DataError

MARKER = "COMPLETE"  # the trainers write it
CHECKPOINT = "checkpoint-"


class ShippedCheckpoints:
    """Mirrors `folder` to the objects under `prefix`. Objects of another attempt that this one
    never saw are left alone."""

    def __init__(self, store: ObjectStore, prefix: str, folder: Path) -> None:
        self._store, self._prefix, self._folder = store, prefix, folder
        self._sealed: set[Path] = set()
        self._loose: dict[Path, tuple[int, int]] = {}

    def bring(self) -> int:
        """Download what earlier attempts have shipped; gives the number of whole checkpoints."""
        names = [found.name for found in self._store.list(self._prefix)]
        whole = {name.rpartition("/")[0] for name in names if name.endswith(f"/{MARKER}")}
        for name in names:
            is_loose = _is_loose(PurePosixPath(name.removeprefix(self._prefix)))
            if is_loose or any(name.startswith(f"{checkpoint}/") for checkpoint in whole):
                self._store.get(name, self._path_of(name))
        self._sealed = {self._path_of(name) for name in whole}
        self._loose = {path: _state(path) for path in self._loose_files()}
        return len(whole)

    def ship(self) -> int:
        """Upload what is new, delete what the stage has removed; gives the number of new
        checkpoints. A checkpoint that it removes meanwhile is left out."""
        num_new = 0
        for marker in sorted(self._folder.rglob(MARKER)):
            if marker.parent not in self._sealed and self._put_checkpoint(marker):
                self._sealed.add(marker.parent)
                num_new += 1
        for path in self._loose_files():
            if self._loose.get(path) != (state := _state(path)):
                self._store.put(path, self._name_of(path))
                self._loose[path] = state
        for gone in [checkpoint for checkpoint in self._sealed if not (checkpoint / MARKER).exists()]:
            self._store.delete(f"{self._name_of(gone)}/{MARKER}")  # first, or the rest would be a damaged one
            self._store.delete(f"{self._name_of(gone)}/")
            self._sealed.remove(gone)
        return num_new

    def _put_checkpoint(self, marker: Path) -> bool:
        try:
            for path in sorted(path for path in marker.parent.rglob("*") if path.is_file() and path != marker):
                self._store.put(path, self._name_of(path))
            self._store.put(marker, self._name_of(marker))
        except FileNotFoundError:
            return False
        return True

    def _loose_files(self) -> Iterator[Path]:
        yield from (path for path in sorted(self._folder.rglob("*")) if _is_loose(path.relative_to(self._folder)))

    def _name_of(self, path: Path) -> str:
        return f"{self._prefix}{path.relative_to(self._folder).as_posix()}"

    def _path_of(self, name: str) -> Path:
        path = self._folder / name.removeprefix(self._prefix)
        if not path.resolve().is_relative_to(self._folder.resolve()):
            raise DataError(
                f"{self._store.remote.url}/{name} would be written outside of {self._folder}: delete it, "
                "and see who may write there"
            )
        return path


def _is_loose(path: PurePath) -> bool:
    return path.suffix == ".jsonl" and not any(parent.name.startswith(CHECKPOINT) for parent in path.parents)


def _state(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns
