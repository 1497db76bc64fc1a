"""`dvc.lock` as a file: read, replaced whole, and put back where a DVC that was killed has left
half of it.

DVC itself writes it in place, 8 KB at a time. A copy of it as it last stood whole lies in the state
folder; without one the last commit's is taken.
"""

import contextlib
import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from posttrain.provenance.fingerprint import value_at
from posttrain.runtime.exits import ConfigurationError, Interrupted
from posttrain.runtime.locks import take_lock_now
from posttrain.runtime.plain_yaml import check_bounds
from posttrain.runtime.state import STATE_DIR, private

LOCK = "dvc.lock"
LAST_WHOLE = STATE_DIR / "dvc.lock.last"
PATIENCE_S = 60.0  # a person's `dvc` holds the lock for moments, not while its stage runs
_RWLOCK = Path(".dvc/tmp/rwlock")
_MAX_VALUES = 1_000_000  # of a `dvc.lock` of thousands of stages
_WRITING_S = 3600.0  # nobody writes one file for so long
_MD5 = re.compile(r"[0-9a-f]{32}(\.dir)?")


def load_as_dvc(text: str) -> Any:
    """YAML 1.2, by DVC's own reader: PyYAML takes `5e-05`, which DVC writes for a small number, for
    a word.

    Raises ValueError where it is none, or beyond a bound of `plain_yaml`.
    """
    try:
        check_bounds(text, max_values=_MAX_VALUES)
        return YAML(typ="safe").load(text)
    except YAMLError as error:
        raise ValueError(str(error)) from error


def knobs_as_dvc(text: str, keys: Iterable[str]) -> dict[str, Any]:
    """The values of knobs in a file's text, as `dvc.lock` has them."""
    content = load_as_dvc(text)
    return {key: value_at(content, key) for key in keys}


def read_entries(text: str) -> dict[str, dict[str, Any]] | None:
    """What a `dvc.lock` says of each stage, in its order; None where the text is cut off or
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
    """What `dvc.lock` of the tree says of each stage; nothing where it is not there, or is
    damaged."""
    text = _text(root / LOCK)
    return (read_entries(text) or {}) if text is not None else {}


def keep_last_whole(root: Path) -> None:
    """Copy `dvc.lock` aside, where it is whole and another than the copy."""
    text = _text(root / LOCK)
    if text is not None and text != _text(root / LAST_WHOLE) and read_entries(text) is not None:
        (root / LAST_WHOLE).parent.mkdir(exist_ok=True)
        replace_file(root / LAST_WHOLE, text)


def mend_files_of_dvc(root: Path, tell: Callable[[str], None]) -> None:
    """Put back what a DVC that was killed, or had no space left, has left half written: `dvc.lock`,
    and its list of who reads and writes; and remove what our own writers left (`replace_file`).

    What a person is merging is left alone. Raises Interrupted where a DVC that lives does not let
    go of its lock, ConfigurationError where `dvc.lock` is no file.
    """
    if (root / LOCK).is_dir():
        raise ConfigurationError(f"{root / LOCK} is a folder, and DVC can record nothing: move it away and run again")
    for partial in (root / STATE_DIR).glob(".*.partial"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - partial.stat().st_mtime > _WRITING_S:
                partial.unlink()
    if not (_is_cut(root) or _is_rwlock_broken(root)):
        return
    with dvc_lock(root):
        if _is_rwlock_broken(root):
            (root / _RWLOCK).unlink(missing_ok=True)
            tell(
                f"{_RWLOCK} was empty or cut off (a full disk, or a killed dvc) and is removed: "
                "no dvc could have started"
            )
        if _is_cut(root):
            text, whose = _last_whole(root)
            if text is None:
                (root / LOCK).unlink()
                tell(
                    f"{LOCK} was cut off by a killed dvc and there is none to put back: "
                    "what the run cache has comes from there"
                )
            else:
                replace_file(root / LOCK, text, is_private=False, root=root)
                tell(f"{LOCK} was cut off by a killed dvc; {whose} is put back")


@contextlib.contextmanager
def dvc_lock(root: Path, *, patience_s: float = PATIENCE_S) -> Iterator[None]:
    """Hold DVC's own lock of the folder without loading DVC. Raises Interrupted where another
    process does not let go of it."""
    path = root / ".dvc/tmp/lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as lock:
        acquire_patiently(lambda: take_lock_now(lock), BlockingIOError, root, patience_s=patience_s)
        yield


def acquire_patiently(
    acquire: Callable[[], object], is_busy: type[Exception], root: Path, *, patience_s: float = PATIENCE_S
) -> None:
    """Call `acquire` until it raises `is_busy` no more. Raises Interrupted where that takes longer
    than `patience_s`."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            acquire()
            return
        except is_busy as error:
            if time.monotonic() > deadline:
                raise Interrupted(
                    f"another dvc has held the lock of {root} for {patience_s:g} s; what is done is kept: "
                    "run again when that dvc is done"
                ) from error
            time.sleep(0.05)


def pids_of_dvc(root: Path) -> set[int]:
    """Of the processes that DVC has on its list of who reads and writes outputs; a command's own
    DVC is there while the command runs."""
    try:
        listed = json.loads(_text(root / _RWLOCK) or "{}")
        readers = [one for some in listed.get("read", {}).values() for one in some]
        return {int(one["pid"]) for one in (*readers, *listed.get("write", {}).values())}
    except (ValueError, AttributeError, LookupError, TypeError):
        return set()


def replace_file(path: Path, text: str, *, is_private: bool = True, root: Path | None = None) -> None:
    """The new content whole or not at all, whatever happens meanwhile. A private file is its user's
    alone. It is written beside the old one, or for a `root` whose folders git tracks in the state
    folder, where that is on the same disk: a kill would leave it there."""
    folder = path.parent
    if root is not None and (root / STATE_DIR).is_dir() and (root / STATE_DIR).stat().st_dev == folder.stat().st_dev:
        folder = root / STATE_DIR
    partial = folder / f".{path.name}.{os.getpid()}.partial"
    try:
        with open(partial, "w", encoding="utf-8", opener=private if is_private else None) as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def edit_lock(root: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    """Change the stages of `dvc.lock` in place of DVC, in DVC's own form; the caller holds DVC's
    lock. The file is replaced whole."""
    from dvc.utils.serialize import dumps_yaml, parse_yaml_for_update  # half a second, and rarely needed

    text = _text(root / LOCK)
    content = parse_yaml_for_update(text, LOCK) if text else {}
    if not content:
        content.update({"schema": "2.0"})
    content.setdefault("stages", {})
    edit(content["stages"])
    replace_file(root / LOCK, dumps_yaml(content), is_private=False, root=root)
    keep_last_whole(root)


def differences(
    now: Mapping[str, Any], then: Mapping[str, Any], *, parts: Sequence[str] = ("deps", "outs")
) -> list[str]:
    """What two entries of `dvc.lock` have differently, as a person names it: paths of these parts,
    `params.yaml:key`, `dvc.yaml` for the command."""
    found = ["dvc.yaml"] if now.get("cmd") != then.get("cmd") else []
    for part in parts:
        hashes_now, hashes_then = (
            {one["path"]: one.get("md5") for one in entry.get(part) or ()} for entry in (now, then)
        )
        found += [path for path in sorted({*hashes_now, *hashes_then}) if hashes_now.get(path) != hashes_then.get(path)]
    params_now, params_then = now.get("params") or {}, then.get("params") or {}
    for file in sorted({*params_now, *params_then}):
        knobs_now, knobs_then = params_now.get(file) or {}, params_then.get(file) or {}
        found += [
            f"{file}:{key}" for key in sorted({*knobs_now, *knobs_then}) if knobs_now.get(key) != knobs_then.get(key)
        ]
    return found


def _is_entry(entry: Any) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("cmd"), str | list):
        return False
    listed = [*(entry.get("deps") or ()), *(entry.get("outs") or ())]
    return all(isinstance(one, dict) and isinstance(one.get("path"), str) for one in listed)


def _has_its_end(entry: Mapping[str, Any]) -> bool:
    """Outputs come last, and their size after their hash. Other hashes than MD5 are of somebody's
    remote storage."""
    outs = entry.get("outs") or ()
    return not outs or "hash" not in outs[-1] or (bool(_MD5.fullmatch(str(outs[-1].get("md5")))) and "size" in outs[-1])


def _is_cut(root: Path) -> bool:
    text = _text(root / LOCK)
    if text is None or "\n<<<<<<< " in f"\n{text}":
        return False
    return read_entries(text) is None


def _is_rwlock_broken(root: Path) -> bool:
    text = _text(root / _RWLOCK)
    if text is None:
        return False
    try:
        return not isinstance(json.loads(text), dict)
    except ValueError:
        return True


def _last_whole(root: Path) -> tuple[str | None, str]:
    text = _text(root / LAST_WHOLE)
    if text is not None and read_entries(text) is not None:
        return text, "what it said before"
    command = ["git", "show", f"HEAD:./{LOCK}"]
    try:
        shown = subprocess.run(command, cwd=root, capture_output=True, check=True).stdout.decode()
    except (subprocess.CalledProcessError, FileNotFoundError, UnicodeDecodeError):
        return None, ""
    return (shown, "the one of the last commit") if read_entries(shown) is not None else (None, "")


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except FileNotFoundError:
        return None
