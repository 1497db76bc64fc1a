"""Freezes files of a tree: the private copy that one stage runs on, and the snapshot of a job
(`posttrain/pipeline/snapshot.py`).

In the person's own folder no moment is safe: code is imported before anything can be hashed, and a
file may be another one while it is read and the old one again afterwards. Each file is hashed while
it is copied, so what was hashed is what is imported, parsed and opened. The copy is read-only and
compared when the stage is over: size, times and inode of every file. A change time cannot be put
back, so an edit of the copy is seen though it was taken back.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from posttrain.provenance.fingerprint import (
    MISSING,
    FileState,
    Fingerprint,
    StageInputs,
    files_below,
    knob_values,
    stat_of,
)
from posttrain.runtime.exits import Interrupted
from posttrain.runtime.state import STATE_DIR, private_folder, state_dir

CODE = ("posttrain", "stages")  # as a whole: the runner's own code is no input of a stage
_CHUNK = 1 << 20
_CLONE_FROM = 64 << 20  # bytes; below, copying is as fast
_FICLONE = 0x40049409  # of Linux: the copy shares the blocks (btrfs, XFS), and no edit of the one reaches the other
_CODE_SUFFIXES = (".py", ".so")
_WRITE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH
_NO_CTIME = -1
_DVCS_OWN = (".dvc", STATE_DIR.name, "dvc.lock")  # no inputs; DVC writes them
Stat = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class FrozenCopy:
    """`files`: the `stat` of every file in `folder` when it was written."""

    folder: Path
    fingerprint: Fingerprint
    files: Mapping[str, Stat]


def frozen_folder(root: Path) -> Path:
    """Folder for the frozen copies, on the tree's own disk: results are renamed into the tree."""
    return private_folder(state_dir(root) / "frozen")


def freeze(inputs: StageInputs, root: Path, folder: Path) -> FrozenCopy:
    """Copy a stage's inputs from `root` into the new `folder`, with the code around stages and a
    link to the state folder. A missing input counts as empty. Raises ConfigurationError for knobs
    of no YAML."""
    folder.mkdir(parents=True)
    (folder / STATE_DIR).symlink_to((root / STATE_DIR).resolve())
    files, copied = freeze_files(root, folder, (file for dep in inputs.deps for file in files_below(root, dep)))
    for dep in inputs.deps:
        if (root / dep).is_dir():
            (folder / dep).mkdir(parents=True, exist_ok=True)  # an empty one, too
    others = [file for code in CODE for file in files_below(root, code)]
    others += ["dvc.yaml", *inputs.params_files, "params.yaml", ".dvcignore"]
    copied |= freeze_files(root, folder, (file for file in others if file not in files))[1]
    texts = {file: (folder / file).read_bytes() for file in inputs.params_files}
    make_read_only(folder, inputs.outs)
    return FrozenCopy(folder, Fingerprint(inputs, files, knob_values(inputs, texts)), copied)


def freeze_files(
    root: Path, folder: Path, paths: Iterable[str], *, is_writable: bool = False
) -> tuple[dict[str, FileState], dict[str, Stat]]:
    """Copy files, links followed, and hash the bytes written. Gives the state of each, and the
    `stat` of the copy of each that is there. A link to a folder stays one.

    The state's `stat` is the source's before it was read: an edit while it is read changes that.
    """
    files: dict[str, FileState] = {}
    copied: dict[str, Stat] = {}
    for path in dict.fromkeys(paths):
        source, target = root / path, folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink() and not source.is_file():
            target.symlink_to(os.readlink(source))
            continue
        try:
            files[path], copied[path] = _copy_hashed(source, target, is_writable=is_writable)
        except FileNotFoundError:
            files[path] = MISSING
    return files, copied


def make_read_only(folder: Path, outs: Iterable[str]) -> None:
    """Make all below read-only but the folders of outs and DVC's own."""
    kept = {folder / parent for out in outs for parent in Path(out).parents} | {folder}
    for name, folders, files in os.walk(folder):
        folders[:] = [one for one in folders if one not in _DVCS_OWN]
        if Path(name) not in kept:
            for path in (name, *(os.path.join(name, one) for one in files)):
                if (mode := os.lstat(path).st_mode) & _WRITE and not stat.S_ISLNK(mode):
                    os.chmod(path, stat.S_IMODE(mode) & ~_WRITE)


def snapshot_files(folder: Path) -> dict[str, Stat]:
    """`stat` of every file of a snapshot. DVC adds and removes names of its objects at any time:
    the change time of a file with several names says nothing."""
    found = {}
    tops = [path.name for path in folder.iterdir() if path.name not in _DVCS_OWN]
    for path in (file for top in tops for file in files_below(folder, top)):
        with contextlib.suppress(FileNotFoundError):
            status = (folder / path).lstat()
            found[path] = stat_of(status) if status.st_nlink == 1 else (*stat_of(status)[:3], _NO_CTIME)
    return found


def refuse_if_touched(folder: Path, files: Mapping[str, Stat], outs: Sequence[str]) -> None:
    """Raises Interrupted where a file is no longer the one that it was, or a file of code was
    added; `outs` are the stage's own to write."""
    touched = [path for path, then in files.items() if not _is_same(folder / path, then)]
    for name, folders, names in os.walk(folder):
        here = Path(name).relative_to(folder)
        folders[:] = [one for one in folders if one not in _DVCS_OWN and (here / one).as_posix() not in outs]
        paths = [(here / one).as_posix() for one in names if one.endswith(_CODE_SUFFIXES)]
        touched += [path for path in paths if path not in files and path not in outs]
    if touched:
        raise Interrupted(
            f"{', '.join(sorted(touched)[:5])}{' …' * (len(touched) > 5)} changed in the copy that the stage ran on "
            f"({folder}), so what it read is not known and its output is not accepted. A replace over hidden folders "
            "does this, even one that is taken back. Run `dvc repro` again"
        )


def move_outs(outs: Sequence[str], folder: Path, root: Path) -> None:
    """Move what the stage made from the copy into the tree, in place of what lies there."""
    for out in outs:
        made, target = folder / out, root / out
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        elif target.is_symlink() or made.is_dir():
            target.unlink(missing_ok=True)
        shutil.move(made, target)  # a rename, but where the state folder is another disk's


def _is_same(path: Path, then: Stat) -> bool:
    try:
        now = stat_of(path.lstat())
    except (FileNotFoundError, NotADirectoryError):
        return False
    return now[:3] == then[:3] if then[3] == _NO_CTIME else now == then


def _copy_hashed(source: Path, target: Path, *, is_writable: bool) -> tuple[FileState, Stat]:
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
        writing.flush()
        mode = stat.S_IMODE(status.st_mode)
        os.fchmod(writing.fileno(), mode if is_writable else mode & ~_WRITE)  # changes the ctime: before it is read
        return FileState(digest.hexdigest(), stat_of(status)), stat_of(os.fstat(writing.fileno()))


def _clone(source: int, target: int) -> bool:
    with contextlib.suppress(OSError):
        fcntl.ioctl(target, _FICLONE, source)
        return True
    return False
