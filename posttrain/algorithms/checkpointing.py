"""Which checkpoint can a killed run go on from? The newest that carries a marker written last, holding the hash of every file.

A kill leaves a half-written folder without a marker, a full disk one with a short file; both are removed before the run resumes, so that nothing ever
loads them. What a folder holds is the trainer's matter (`resumable.py`).
"""

import errno
import hashlib
import json
import os
import shutil
from pathlib import Path

from posttrain.exits import Interrupted

MARKER = "COMPLETE"
PREFIX = "checkpoint-"
NUM_KEPT = 2  # the newest may be the one that a failing disk has just damaged


def seal(checkpoint: Path) -> None:
    """Write the marker: from here on the folder counts. It appears under its name at once or not at all."""
    content = {"files": {path.name: _sha256(path) for path in sorted(checkpoint.iterdir()) if path.is_file()}}
    temporary = checkpoint / f"{MARKER}.tmp"
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(content, file, indent=1, sort_keys=True)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(checkpoint / MARKER)


def is_complete(checkpoint: Path) -> bool:
    """True where the marker is there and every file that it names has the content it names."""
    try:
        files: dict[str, str] = json.loads((checkpoint / MARKER).read_text(encoding="utf-8"))["files"]
    except (FileNotFoundError, ValueError):
        return False
    return all((checkpoint / name).is_file() and _sha256(checkpoint / name) == digest for name, digest in files.items())


def newest_complete(folder: Path) -> Path | None:
    """The checkpoint of the highest step that is complete, or None. The incomplete ones above it are removed."""
    for checkpoint in reversed(checkpoints_in(folder)):
        if is_complete(checkpoint):
            return checkpoint
        shutil.rmtree(checkpoint)
    return None


def prune(folder: Path, *, keep: Path | None) -> None:
    """Remove all but the newest `NUM_KEPT` checkpoints and `keep`, the best one if the run knows of a best."""
    for checkpoint in checkpoints_in(folder)[:-NUM_KEPT]:
        if keep is None or checkpoint.resolve() != keep.resolve():
            shutil.rmtree(checkpoint)


def checkpoints_in(folder: Path) -> list[Path]:
    """The folders `checkpoint-<step>`, lowest step first, complete or not."""
    found = [path for path in folder.glob(f"{PREFIX}*") if path.is_dir() and path.name.removeprefix(PREFIX).isdigit()]
    return sorted(found, key=lambda path: int(path.name.removeprefix(PREFIX)))


def no_room(folder: Path, error: Exception) -> Interrupted | None:
    """The end that a failed write stands for, or None where it was not for want of space.

    torch and safetensors report a full disk as errors of their own, without an `errno`; the free space on the disk then tells.
    """
    number = error.errno if isinstance(error, OSError) else None
    free_mib = shutil.disk_usage(folder).free / 2**20
    is_full = number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or any(sign in str(error) for sign in ("No space left", "File too large"))
    if not is_full and (isinstance(error, OSError) or free_mib > 1):
        return None
    kept = newest_complete(folder)
    return Interrupted(
        f"no room to write in {folder} ({free_mib:.0f} MiB free): {error}. "
        f"{f'The last good one, {kept.name}, is kept' if kept else 'There was none before it'}: free some space and run again, it goes on from there"
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
