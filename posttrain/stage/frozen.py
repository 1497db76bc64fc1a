"""A private copy of what one stage reads: the program runs there, so what was hashed is what is
imported, parsed and opened.

In the person's own folder no moment is safe: code is imported before anything can be hashed, and a
file may be another one while it is read and the old one again afterwards. Each file is hashed while
it is copied, and the copy is nobody's to edit.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from posttrain.stage.fingerprint import FileState, Fingerprint, StageInputs, files_below, knob_values, stat_of
from posttrain.state import STATE_DIR

CODE = ("posttrain", "stages")  # as a whole: what starts a stage is no input of it
_CHUNK = 1 << 20
_CLONE_FROM = 64 << 20  # bytes; below, copying is as fast
_FICLONE = 0x40049409  # of Linux: the copy shares the blocks (btrfs, XFS), and no edit of the one reaches the other


def freeze(inputs: StageInputs, root: Path, folder: Path) -> Fingerprint:
    """Copy all inputs from `root` into `folder`, which must not exist, and hash what was copied;
    with the code around stages and the state folder.

    A missing input is left out and counts as empty content. Raises ConfigurationError where a file
    of knobs is no YAML.
    """
    folder.mkdir(parents=True)
    (folder / STATE_DIR).symlink_to((root / STATE_DIR).resolve())
    files = {}
    for path in dict.fromkeys(file for dep in inputs.deps for file in files_below(root, dep)):
        try:
            files[path] = copy_hashed(root / path, folder / path)
        except FileNotFoundError:
            files[path] = FileState("", (0, 0, 0, 0))
    for dep in inputs.deps:
        if (root / dep).is_dir():
            (folder / dep).mkdir(parents=True, exist_ok=True)  # an empty one, too
    others = [file for code in CODE for file in files_below(root, code)] + [
        "dvc.yaml",
        *inputs.params_files,
        "params.yaml",
        ".dvcignore",
    ]
    for path in others:
        if not (folder / path).exists() and (root / path).exists():
            copy_hashed(root / path, folder / path)
    texts = {file: (folder / file).read_bytes() for file in inputs.params_files}
    return Fingerprint(inputs.command, files, knob_values(inputs, texts))


def copy_hashed(source: Path, target: Path) -> FileState:
    """Copy a file, links followed, and hash what was written. The state's `stat` is the source's,
    of before it was read: whoever edits it while it is read changes that."""
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.md5(usedforsecurity=False)
    with source.open("rb") as reading, target.open("wb") as writing:
        status = os.fstat(reading.fileno())
        if status.st_size >= _CLONE_FROM and _clone(reading.fileno(), writing.fileno()):
            with target.open("rb") as cloned:
                digest = hashlib.file_digest(cloned, lambda: digest)
        else:
            while chunk := reading.read(_CHUNK):
                digest.update(chunk)
                writing.write(chunk)
    shutil.copymode(source, target)
    return FileState(digest.hexdigest(), stat_of(status))


def place_outs(outs: Sequence[str], folder: Path, root: Path) -> None:
    """Move what the stage made from the copy into the tree, in place of what stands there."""
    for out in outs:
        made, target = folder / out, root / out
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        elif target.is_symlink() or made.is_dir():
            target.unlink(missing_ok=True)
        shutil.move(made, target)  # a rename, but where the state folder is another disk's


def _clone(source: int, target: int) -> bool:
    with contextlib.suppress(OSError):
        fcntl.ioctl(target, _FICLONE, source)
        return True
    return False
