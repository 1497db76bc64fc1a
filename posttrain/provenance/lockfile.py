"""Reads and writes `dvc.lock`, and repairs what a DVC that was killed has left half written.

DVC writes the file in place, 8 KB at a time. A backup of the last whole one lies in the state
folder; without it the last commit's is taken. Our own writer, for flows and for corrections, is
`write_entry`: it replaces the file whole, and its bytes are DVC's.
"""

import contextlib
import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from posttrain.provenance.fingerprint import load_as_dvc
from posttrain.runtime.exits import ConfigurationError, Interrupted
from posttrain.runtime.locks import take_lock_now
from posttrain.runtime.state import STATE_DIR, private

LOCK = "dvc.lock"
BACKUP = STATE_DIR / "dvc.lock.backup"
PATIENCE_S = 60.0  # a person's `dvc` has the lock for moments, not while its stage runs
_RWLOCK = Path(".dvc/tmp/rwlock")
_MD5 = re.compile(r"[0-9a-f]{32}(\.dir)?")
T = TypeVar("T")


def read_entries(text: str) -> dict[str, dict[str, Any]] | None:
    """Entry of each stage in a text of `dvc.lock`, in its order; None where the text is cut off or
    damaged: it is no YAML, its last line has no end, or the last file that it names no hash."""
    try:
        content = load_as_dvc(text)
    except ValueError:
        return None
    stages = content.get("stages") if isinstance(content, dict) else None
    if not isinstance(stages, dict) or not text.endswith("\n") or not all(map(_is_entry, stages.values())):
        return None
    return stages if not stages or _has_its_end(stages[list(stages)[-1]]) else None


def lock_entries(root: Path) -> dict[str, dict[str, Any]]:
    """Entries by stage of the tree's `dvc.lock`; empty where it is absent or damaged."""
    text = _text(root / LOCK)
    return (read_entries(text) or {}) if text is not None else {}


def write_entry(root: Path, stage: str, entry: Mapping[str, Any] | None, order: Sequence[str] = ()) -> None:
    """Set the entry of a stage in `dvc.lock`, or remove it (None), under DVC's lock; a new one goes
    before the first that comes later in `order`, the order of `dvc repro`."""
    from dvc.utils.serialize import dumps_yaml, parse_yaml_for_update  # half a second, and rarely needed

    text = _text(root / LOCK)
    content = parse_yaml_for_update(text, LOCK) if text else {}
    if not content:
        content.update({"schema": "2.0"})
    stages = content.setdefault("stages", {})
    # Siblings are recorded as they end; the order of entries must not depend on that.
    later = set(order[order.index(stage) + 1 :]) if stage in order else set()
    place = next((number for number, other in enumerate(stages) if other in later), None)
    if entry is None:
        del stages[stage]
    elif stage in stages or place is None:
        stages[stage] = entry
    else:
        stages.insert(place, stage, entry)
    replace_file(root / LOCK, dumps_yaml(content), is_private=False, root=root)
    save_backup(root)


def differences(
    now: Mapping[str, Any], then: Mapping[str, Any], *, parts: Sequence[str] = ("deps", "outs")
) -> list[str]:
    """Names of what differs between two entries: paths of these parts, `params.yaml:key`,
    `dvc.yaml` for the command."""
    first, second = _contents(now, parts), _contents(then, parts)
    return [name for name in {**first, **second} if first.get(name) != second.get(name)]


def save_backup(root: Path) -> None:
    """Copy `dvc.lock` to the backup, where it is whole and differs."""
    text = _text(root / LOCK)
    if text is not None and text != _text(root / BACKUP) and read_entries(text) is not None:
        (root / BACKUP).parent.mkdir(exist_ok=True)
        replace_file(root / BACKUP, text)


def repair_dvc_files(root: Path, log: Callable[[str], None]) -> None:
    """Repair what a killed DVC, or a full disk, has left of `dvc.lock` and of its list of readers
    and writers. Raises Interrupted where a living DVC keeps its lock."""
    if (root / LOCK).is_dir():
        raise ConfigurationError(f"{root / LOCK} is a folder, and DVC can record nothing: move it away and run again")
    if not (_is_cut(root) or _is_rwlock_broken(root)):
        return
    with dvc_lock(root):
        if _is_rwlock_broken(root):
            (root / _RWLOCK).unlink(missing_ok=True)
            log(f"{_RWLOCK} was empty or cut off (a full disk, or a killed dvc) and is removed: no dvc could start")
        if _is_cut(root):
            _restore_backup(root, log)


@contextlib.contextmanager
def dvc_lock(root: Path) -> Iterator[None]:
    """Take DVC's own lock without loading DVC. Raises Interrupted where another keeps it."""
    path = root / ".dvc/tmp/lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as lock:
        # By flock, as zc.lockfile does, which DVC uses.
        retry_while_locked(lambda: take_lock_now(lock), BlockingIOError, root)
        yield


def retry_while_locked(act: Callable[[], T], is_locked: type[Exception], root: Path, *, pause_s: float = 0.05) -> T:
    """Call `act` until it raises `is_locked` no more, or Interrupted after `PATIENCE_S`."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return act()
        except is_locked as error:
            if time.monotonic() > deadline:
                raise Interrupted(
                    f"another dvc has had the lock of {root} for {PATIENCE_S:g} s; what is done is kept: "
                    "run again when that dvc is done"
                ) from error
            time.sleep(pause_s)


def pids_of_dvc(root: Path) -> set[int]:
    """Pids on DVC's list of readers and writers, where a running command's DVC is."""
    try:
        listed = json.loads(_text(root / _RWLOCK) or "{}")
        readers = [one for some in listed.get("read", {}).values() for one in some]
        return {int(one["pid"]) for one in (*readers, *listed.get("write", {}).values())}
    except (ValueError, AttributeError, LookupError, TypeError):
        return set()


def replace_file(path: Path, text: str, *, is_private: bool = True, root: Path | None = None) -> None:
    """Write the new content whole or not at all, whatever happens meanwhile. A private file is its
    user's alone. It is written beside the old one, or for a `root` whose folders git tracks in the
    state folder, where that is on the same disk: a kill would leave it there."""
    folder = path.parent
    if root is not None and (root / STATE_DIR).is_dir() and (root / STATE_DIR).stat().st_dev == folder.stat().st_dev:
        folder = root / STATE_DIR
    partial = folder / f".{path.name}.{os.getpid()}.partial"
    try:
        with open(partial, "w", encoding="utf-8", opener=private if is_private else None) as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)  # atomic: a reader sees the old file or the new one
    finally:
        partial.unlink(missing_ok=True)


def _contents(entry: Mapping[str, Any], parts: Sequence[str]) -> dict[str, Any]:
    hashes = {one["path"]: one.get("md5") for part in parts for one in entry.get(part) or ()}
    files = (entry.get("params") or {}).items()
    knobs = {f"{file}:{key}": value for file, values in files for key, value in values.items()}
    return {"dvc.yaml": entry.get("cmd")} | hashes | knobs


def _is_entry(entry: Any) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("cmd"), str | list):
        return False
    listed = [*(entry.get("deps") or ()), *(entry.get("outs") or ())]
    return all(isinstance(one, dict) and isinstance(one.get("path"), str) for one in listed)


def _has_its_end(entry: Mapping[str, Any]) -> bool:
    """Outputs come last, their size after their hash; other hashes are of a remote storage."""
    outs = entry.get("outs") or ()
    return not outs or "hash" not in outs[-1] or (bool(_MD5.fullmatch(str(outs[-1].get("md5")))) and "size" in outs[-1])


def _is_cut(root: Path) -> bool:
    text = _text(root / LOCK)
    return text is not None and read_entries(text) is None


def _is_rwlock_broken(root: Path) -> bool:
    text = _text(root / _RWLOCK)
    if text is None:
        return False
    try:
        return not isinstance(json.loads(text), dict)
    except ValueError:
        return True


def _restore_backup(root: Path, log: Callable[[str], None]) -> None:
    # No commit, no git, and no such file in the commit have no output.
    shown = subprocess.run(["git", "show", f"HEAD:./{LOCK}"], cwd=root, capture_output=True, check=False)
    of_commit = shown.stdout.decode(errors="surrogateescape")
    for text, source in ((_text(root / BACKUP), "its backup"), (of_commit, "the last commit's")):
        if text and read_entries(text) is not None:
            replace_file(root / LOCK, text, is_private=False, root=root)
            log(f"{LOCK} was cut off by a killed dvc; {source} is put back")
            return
    (root / LOCK).unlink()
    log(f"{LOCK} was cut off by a killed dvc and there is no backup: what the run cache has comes from there")


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except FileNotFoundError:
        return None
