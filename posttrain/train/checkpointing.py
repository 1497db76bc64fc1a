"""Checkpoint folders: sealed by a marker that is written last and holds the hash of every file.

A killed run resumes from the newest that is sealed. A kill leaves a folder without a marker, a full
disk one with a short file; both are removed before the run resumes. What a folder holds is up to
the trainer (`resumable_trainer.py`, `online/trainer_state.py`).
"""

import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from safetensors import safe_open

from posttrain.runtime.exits import StoppedByAlarm

MARKER = "COMPLETE"
PREFIX = "checkpoint-"
_STEP = re.compile(r"[0-9]{1,15}")
NUM_KEPT = 2  # the newest may be the one that a failing disk has just damaged


def seal(checkpoint: Path) -> None:
    """Write the marker, by a rename: from here on the folder counts. Raises StoppedByAlarm where a
    weight in its `*.safetensors` is not finite: a run that resumed from it could learn nothing."""
    for weights in sorted(checkpoint.glob("*.safetensors")):
        if broken := list(_not_finite(weights)):
            raise diverged(broken, weights)
    content = {"files": {name: _sha256(checkpoint / name) for name in _files(checkpoint)}}
    temporary = checkpoint / f"{MARKER}.tmp"
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(content, file, indent=1, sort_keys=True)
        file.flush()
        os.fsync(file.fileno())  # a rename may reach the disk before the content does
    # the one atomic step: before it the folder counts for nothing
    temporary.rename(checkpoint / MARKER)


def diverged(broken: Sequence[str], place: Path) -> StoppedByAlarm:
    """The end of a training that has made these weights of a file or folder something else than
    finite numbers."""
    return StoppedByAlarm(
        f"{', '.join(broken[:3])} of {place} are not all finite numbers: the training has diverged. The "
        "checkpoint before it is kept; lower the stage's lr and run again"
    )


def is_complete(checkpoint: Path) -> bool:
    return _damage(checkpoint) is None


def newest_complete(folder: Path) -> Path | None:
    """The complete checkpoint of the highest step. Incomplete ones above it are removed, with a
    line on stderr for each."""
    for checkpoint in reversed(checkpoints_in(folder)):
        damage = _damage(checkpoint)
        if damage is None:
            return checkpoint
        print(
            f"{checkpoint} is half written or damaged ({damage}): removed, the run goes on from the one before",
            file=sys.stderr,
            flush=True,
        )
        remove(checkpoint)
    return None


def remove(checkpoint: Path) -> None:
    """Remove the folder, or whatever stands in its place."""
    if checkpoint.is_dir() and not checkpoint.is_symlink():
        shutil.rmtree(checkpoint)
    else:
        checkpoint.unlink()


def prune(folder: Path, *, keep: Path | None) -> None:
    """Remove all but the newest `NUM_KEPT` checkpoints and `keep`, such as the best one."""
    for checkpoint in checkpoints_in(folder)[:-NUM_KEPT]:
        if keep is None or checkpoint.resolve() != keep.resolve():
            remove(checkpoint)


def checkpoints_in(folder: Path) -> list[Path]:
    """All `checkpoint-<step>`, lowest step first, complete or not."""
    found = [path for path in folder.glob(f"{PREFIX}*") if _STEP.fullmatch(path.name.removeprefix(PREFIX))]
    return sorted(found, key=lambda path: int(path.name.removeprefix(PREFIX)))


def _damage(checkpoint: Path) -> str | None:
    """Damage of the checkpoint; None where there is none."""
    try:
        sealed = json.loads((checkpoint / MARKER).read_text(encoding="utf-8"))["files"]
        found = set(_files(checkpoint)) - {MARKER, f"{MARKER}.tmp"}
        if not isinstance(sealed, dict) or not sealed or found != set(sealed):
            return f"{MARKER} does not name the files that are there"
        changed = [name for name, digest in sealed.items() if _sha256(checkpoint / name) != digest]
    except FileNotFoundError:
        return f"it has no {MARKER}"
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        return f"{MARKER} cannot be read: {type(error).__name__}"
    return f"{', '.join(changed)} is not what was sealed" if changed else None


def _files(checkpoint: Path) -> list[str]:
    """The names of all files in the folder and those in it, sorted."""
    return sorted(path.relative_to(checkpoint).as_posix() for path in checkpoint.rglob("*") if not path.is_dir())


def _not_finite(file: Path) -> Iterator[str]:
    """The names of tensors with a NaN or an infinity."""
    with safe_open(file, framework="pt") as tensors:
        for name in tensors.keys():  # noqa: SIM118 — no dictionary
            tensor = tensors.get_tensor(name)
            if tensor.is_floating_point() and not tensor.isfinite().all():
                yield name


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
