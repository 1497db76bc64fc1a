"""A private copy of what one stage reads: the program runs there, so what was hashed is what is
imported, parsed and opened.

In the person's own folder no moment is safe: code is imported before anything can be hashed, and a
file may be another one while it is read and the old one again afterwards. Each file is hashed while
it is copied. The copy is read-only, lies outside of the tree where that is possible, so that a
replace over the whole tree does not reach it, and is looked at again when the stage is over: size,
times and inode of every file. A change time cannot be put back, so that an edit of the copy is seen
though it was taken back.
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

from posttrain.provenance.fingerprint import FileState, Fingerprint, StageInputs, files_below, knob_values, stat_of
from posttrain.runtime.exits import Interrupted
from posttrain.runtime.state import STATE_DIR, private_folder, remove_tree, state_dir, tree_name

CODE = ("posttrain", "stages")  # as a whole: what starts a stage is no input of it
FROZEN = STATE_DIR / "frozen"
_CHUNK = 1 << 20
_CLONE_FROM = 64 << 20  # bytes; below, copying is as fast
_FICLONE = 0x40049409  # of Linux: the copy shares the blocks (btrfs, XFS), and no edit of the one reaches the other
_CODE_SUFFIXES = (".py", ".so")
_WRITE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH
_NO_CTIME = -1
_NO_INPUTS = (".dvc", STATE_DIR.name, "dvc.lock")
Stat = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class FrozenCopy:
    """`files`: size, times and inode of every file in `folder`, by its path there, as it was when
    it was written."""

    folder: Path
    fingerprint: Fingerprint
    files: Mapping[str, Stat]


def frozen_folder(root: Path) -> Path:
    """The folder for the copies of this tree's stages, made where it is not there. It lies in the
    user's cache folder (`XDG_CACHE_HOME`), where `.posttrain/frozen` links to it; or is
    `.posttrain/frozen` itself, where the cache folder is on another disk: results are moved from
    the copy into the tree by renaming, and large inputs share its blocks."""
    link, root = state_dir(root) / FROZEN.name, root.resolve()
    with contextlib.suppress(OSError, RuntimeError):  # no home, or one that may not be written
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").resolve()
        if (
            not cache.is_relative_to(root)
            and private_folder(cache / "posttrain/frozen").stat().st_dev == root.stat().st_dev
        ):
            folder = private_folder(cache / "posttrain/frozen" / tree_name(root))
            _forget_copies_of_lost_trees(folder.parent)
            if link.is_dir() and not link.is_symlink():
                remove_tree(link)
            if not link.is_symlink() or link.readlink() != folder:
                link.unlink(missing_ok=True)
                link.symlink_to(folder)
            return folder
    if link.is_symlink():
        link.unlink()
    return private_folder(link)


def freeze(inputs: StageInputs, root: Path, folder: Path) -> FrozenCopy:
    """Copy all inputs from `root` into `folder`, which must not exist, and hash what was copied;
    with the code around stages and the state folder.

    A missing input is left out and counts as empty content. Raises ConfigurationError where a file
    of knobs is no YAML.
    """
    folder.mkdir(parents=True)
    (folder / STATE_DIR).symlink_to((root / STATE_DIR).resolve())
    files, copied = {}, {}
    for path in dict.fromkeys(file for dep in inputs.deps for file in files_below(root, dep)):
        try:
            files[path], copied[path] = _copy_hashed(root / path, folder / path)
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
            _, copied[path] = _copy_hashed(root / path, folder / path)
    texts = {file: (folder / file).read_bytes() for file in inputs.params_files}
    protect(folder, inputs.outs)
    return FrozenCopy(folder, Fingerprint(inputs.command, files, knob_values(inputs, texts)), copied)


def protect(folder: Path, outs: Iterable[str]) -> None:
    """Make every folder below read-only with its files, but for those in which the stage makes its
    outs, and DVC's own."""
    kept = {folder / parent for out in outs for parent in Path(out).parents} | {folder}
    for name, folders, files in os.walk(folder):
        folders[:] = [one for one in folders if one not in _NO_INPUTS]
        if Path(name) not in kept:
            for path in (name, *(os.path.join(name, one) for one in files)):
                if (mode := os.lstat(path).st_mode) & _WRITE and not stat.S_ISLNK(mode):
                    os.chmod(path, stat.S_IMODE(mode) & ~_WRITE)


def snapshot_files(folder: Path) -> dict[str, Stat]:
    """As `FrozenCopy.files` has it, of a tree in which DVC works. A file of several names is DVC's,
    which makes and removes names of it at any time: its change time says nothing."""
    found = {}
    tops = [path.name for path in folder.iterdir() if path.name not in _NO_INPUTS]
    for path in (file for top in tops for file in files_below(folder, top)):
        with contextlib.suppress(FileNotFoundError):
            status = (folder / path).lstat()
            found[path] = stat_of(status) if status.st_nlink == 1 else (*stat_of(status)[:3], _NO_CTIME)
    return found


def refuse_if_touched(folder: Path, files: Mapping[str, Stat], outs: Sequence[str]) -> None:
    """Raises Interrupted where a file is no longer the one that it was, or a file of code has come
    to the frozen ones since; `outs` are the stage's own to write."""
    touched = [path for path, then in files.items() if not _is_same(folder / path, then)]
    for name, folders, names in os.walk(folder):
        here = Path(name).relative_to(folder)
        folders[:] = [one for one in folders if one not in _NO_INPUTS and (here / one).as_posix() not in outs]
        touched += [
            path
            for one in names
            if one.endswith(_CODE_SUFFIXES) and (path := (here / one).as_posix()) not in files and path not in outs
        ]
    if touched:
        raise Interrupted(
            f"{', '.join(sorted(touched)[:5])}{' …' * (len(touched) > 5)} changed in the copy that the stage ran on "
            f"({folder}), so what it read is not known and its output is not accepted. A replace over hidden folders "
            "does this, even one that is taken back. Run `dvc repro` again"
        )


def _is_same(path: Path, then: Stat) -> bool:
    try:
        now = stat_of(path.lstat())
    except (FileNotFoundError, NotADirectoryError):
        return False
    return now[:3] == then[:3] if then[3] == _NO_CTIME else now == then


def _copy_hashed(source: Path, target: Path) -> tuple[FileState, Stat]:
    """Copy a file, links followed, for reading only, and hash what was written. The state's `stat`
    is the source's, of before it was read: whoever edits it while it is read changes that. The
    second is the copy's own."""
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
        writing.flush()
        os.fchmod(writing.fileno(), stat.S_IMODE(status.st_mode) & ~_WRITE)  # changes the change time: before the look
        return FileState(digest.hexdigest(), stat_of(status)), stat_of(os.fstat(writing.fileno()))


def _forget_copies_of_lost_trees(folder: Path) -> None:
    """Every copy links to its tree's state folder."""
    for copy in folder.glob("*/*"):
        if (copy / STATE_DIR).is_symlink() and not (copy / STATE_DIR).exists():
            remove_tree(copy.parent)


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
