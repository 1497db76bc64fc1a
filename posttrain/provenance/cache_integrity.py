"""Checks that inputs out of DVC's cache have the hash in their name, which DVC does not.

An input is hashed anyway when it is frozen. Where its hash is not the one in `dvc.lock`, either a
person edited it, which is theirs to do, or the object in the cache is damaged. That object is
removed with what was checked out of it, so that the next run makes it again.
"""

import configparser
import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import platformdirs

from posttrain.provenance.fingerprint import FileState, Fingerprint, lock_form, md5_of, state_of
from posttrain.provenance.lockfile import lock_entries
from posttrain.runtime.exits import Interrupted

VERIFIED, VERIFIED_COSTS = "verified", "costs.jsonl"  # runs beside the objects that trees share, and their records


def refuse_damaged(entries: Mapping[str, Mapping[str, Any]], fingerprint: Fingerprint, root: Path) -> None:
    """Raises Interrupted where an input came out of DVC's cache damaged; the input and the object
    are removed by then. `entries` are those of `dvc.lock`."""
    for out in (out for entry in entries.values() for out in entry.get("outs") or ()):
        if out["path"] in fingerprint.inputs.deps and (damage := _remove_if_damaged(out, fingerprint.files, root)):
            raise Interrupted(f"{damage}; nothing was made from it. Run `dvc repro` again")


def remove_damaged_listings(root: Path) -> list[str]:
    """Remove the damaged listings of folders that `dvc.lock` names from DVC's cache, on which DVC
    itself may end; gives the folders, which the next run makes again."""
    cache, found = cache_folder(root) / "files/md5", []
    for out in (out for entry in lock_entries(root).values() for out in entry.get("outs") or ()):
        md5 = str(out.get("md5", ""))
        listing = cache / md5[:2] / md5[2:]
        if md5.endswith(".dir") and listing.is_file() and _is_damaged(listing, md5):
            _remove(listing)
            found.append(str(out["path"]))
    return found


def forget_stale(root: Path, files: Mapping[str, FileState]) -> list[str]:
    """Have DVC forget the hashes that it remembers of these files and that are not theirs; gives
    such files.

    DVC knows a file by inode, size and time, so one that was replaced by another of the same
    (`cp -p`, an unpacked archive) keeps its old hash, and the stage would run again and again.
    """
    from dvc.fs import localfs  # a fifth of a second, and rarely needed
    from dvc.repo import Repo

    stale = []
    with Repo(str(root)) as repo:
        for file, state in files.items():
            path = f"{repo.root_dir}/{file}"
            _, remembered = repo.state.get(path, localfs)
            is_other = remembered is not None and remembered.name == "md5" and remembered.value != state.md5
            if is_other and state_of(Path(path), state) is state:  # else it was edited since, which DVC sees
                del repo.state.hashes[path]
                stale.append(file)
    return stale


def cache_folder(root: Path) -> Path:
    """DVC's cache by its settings, read here because DVC takes half a second to start."""
    own, found = root.resolve() / ".dvc", root.resolve() / ".dvc/cache"
    everyones = [
        Path(os.environ.get(f"DVC_{level}_CONFIG_DIR") or place("dvc", "iterative")) / "config"
        for level, place in (("SYSTEM", platformdirs.site_config_path), ("GLOBAL", platformdirs.user_config_path))
    ]
    for file in (*everyones, own / "config", own / "config.local"):
        settings = configparser.ConfigParser(interpolation=None, strict=False)
        with contextlib.suppress(configparser.Error, UnicodeDecodeError, OSError):
            settings.read(file, encoding="utf-8")
            if named := settings.get("cache", "dir", fallback="").strip("\"'"):
                found = Path(os.path.abspath(file.parent / named))
    return found


def common_cache(cache: Path) -> Path:
    """The folder of the objects of a cache, which may be linked to."""
    return (cache / "files").resolve().parent


def _remove_if_damaged(out: Mapping[str, Any], files: Mapping[str, FileState], root: Path) -> str:
    """The damage in words, empty where there is none."""
    path, md5 = out["path"], str(out.get("md5", ""))
    if lock_form([path], files)[0]["md5"] == md5:
        return ""
    damaged = sorted(set(_damaged_objects(cache_folder(root) / "files/md5", md5)))
    if not damaged:
        return ""
    for one in damaged:
        _remove(one)
    if (root / path).is_dir() and not (root / path).is_symlink():
        shutil.rmtree(root / path)
    else:
        (root / path).unlink(missing_ok=True)
    names = ", ".join(one.parent.name + one.name for one in damaged)
    return (
        f"{path} is not what was made: {names} of DVC's cache had another content than its name says, "
        "and is removed, to be made again"
    )


def _is_damaged(cached: Path, md5: str) -> bool:
    return md5_of(cached) != md5.removesuffix(".dir")


def _remove(cached: Path) -> None:
    cached.chmod(0o644)  # DVC makes its objects read-only
    cached.unlink()


def _damaged_objects(cache: Path, md5: str) -> Iterator[Path]:
    """The object, or the damaged ones that a folder's sound listing names."""
    path = cache / md5[:2] / md5[2:]
    if not path.is_file():
        return
    if _is_damaged(path, md5):
        yield path
    elif md5.endswith(".dir"):
        for entry in json.loads(path.read_text(encoding="utf-8")):
            yield from _damaged_objects(cache, entry["md5"])
