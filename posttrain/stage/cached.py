"""Looks whether what came out of DVC's cache is what its name says, because DVC does not.

An input is hashed anyway when it is frozen; an output when it has changed since it was last looked
at. Where its hash is not the one of its maker in `dvc.lock`, either a person edited it, which is
theirs to do, or the object in the cache is damaged. That object is removed with what was checked
out of it, so that the next run makes it again.
"""

import configparser
import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import platformdirs

from posttrain.exits import Interrupted
from posttrain.stage.fingerprint import FileState, Fingerprint, StageInputs, file_states, lock_form, md5_of
from posttrain.stage.lockfile import lock_entries, replace_file
from posttrain.state import STATE_DIR

SETTLED, SETTLED_COSTS = "settled", "costs.jsonl"  # runs beside the objects that trees share, and their records
LOOKED_AT = STATE_DIR / "outs.json"  # the outs as they were when they were last hashed


def refuse_damaged(
    entries: Mapping[str, Mapping[str, Any]], inputs: StageInputs, fingerprint: Fingerprint, root: Path
) -> None:
    """Raises Interrupted where an input came out of DVC's cache damaged; both are removed by then.
    `entries` are those of `dvc.lock`."""
    for out in _outs(entries):
        if out["path"] in inputs.deps and (said := _remove_if_damaged(out, fingerprint.files, root)):
            raise Interrupted(f"{said}; nothing was made from it. Run `dvc repro` again")


def remove_damaged_outs(
    root: Path, tell: Callable[[str], None], outs: Sequence[Mapping[str, Any]] | None = None
) -> list[str]:
    """Hash the outputs that have changed since they were last looked at; gives those that had come
    out of the cache damaged and are removed.

    `outs` are parts of entries of `dvc.lock`, by default all that stand there.
    """
    known = _looked_at(root)
    now, removed = dict(known), []
    for out in _outs(lock_entries(root)) if outs is None else outs:
        path = out["path"]
        now.pop(path, None)
        if not (root / path).exists():
            continue
        earlier = {file: FileState(md5, stat) for file, (md5, stat) in known.get(path, {}).items()}
        files = file_states([path], root, earlier)
        if said := _remove_if_damaged(out, files, root):
            removed.append(path)
            tell(f"{said}. Run `dvc repro`")
        else:
            now[path] = {file: (state.md5, state.stat) for file, state in files.items()}
    if now != known:
        (root / LOOKED_AT).parent.mkdir(exist_ok=True)
        replace_file(root / LOOKED_AT, json.dumps(now))
    return removed


def cache_folder(root: Path) -> Path:
    """DVC's cache of the tree, as DVC's settings of the machine, the user and the tree say: read
    here, because DVC takes half a second to start."""
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


def _outs(entries: Mapping[str, Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [out for entry in entries.values() for out in entry.get("outs") or ()]


def _remove_if_damaged(out: Mapping[str, Any], files: Mapping[str, FileState], root: Path) -> str:
    """What was wrong, empty where nothing was."""
    path, md5 = out["path"], str(out.get("md5", ""))
    if lock_form([path], files)[0]["md5"] == md5:
        return ""
    damaged = sorted(set(_damaged_objects(cache_folder(root) / "files/md5", md5)))
    if not damaged:
        return ""
    for one in damaged:
        one.chmod(0o644)
        one.unlink()
    _remove(root / path)
    names = ", ".join(one.parent.name + one.name for one in damaged)
    return (
        f"{path} is not what was made: {names} of DVC's cache had another content than its name says, "
        "and is removed, to be made again"
    )


def _damaged_objects(cache: Path, md5: str) -> Iterator[Path]:
    """Of the object itself, and where it is a folder's listing, of the objects that it lists."""
    path = cache / md5[:2] / md5[2:]
    if not path.is_file():
        return
    if md5_of(path) != md5.removesuffix(".dir"):
        yield path
        return
    if md5.endswith(".dir"):
        for entry in json.loads(path.read_text(encoding="utf-8")):
            yield from _damaged_objects(cache, entry["md5"])


def _looked_at(root: Path) -> dict[str, dict[str, tuple[str, tuple[int, int, int, int]]]]:
    """Nothing where it cannot be read: all is looked at again."""
    try:
        known = json.loads((root / LOOKED_AT).read_text(encoding="utf-8"))
        return {
            path: {file: (str(md5), (int(a), int(b), int(c), int(d))) for file, (md5, (a, b, c, d)) in files.items()}
            for path, files in known.items()
        }
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
