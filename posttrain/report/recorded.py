"""Reports are read only where they are those that the last run wrote.

`dvc.lock` has the MD5 of each, and a digit that was changed makes a report that reads well. Asked
by who reads reports outside of the graph: inside it DVC asks itself, and runs a stage again whose
output is not the recorded one.
"""

from collections.abc import Iterable
from pathlib import Path

from posttrain.provenance.fingerprint import md5_of
from posttrain.provenance.lockfile import read_entries
from posttrain.runtime.exits import DataError


def refuse_unrecorded(files: Iterable[Path], lock: Path) -> None:
    """Raises DataError for the first of `files` that is not what `lock`, the dvc.lock beside
    dvc.yaml, records. What it has no entry for passes, and so does all where there is no lock:
    nothing is known then."""
    recorded = _recorded(lock) if lock.exists() else {}
    for file in files:
        stage, md5 = recorded.get(file.resolve(), ("", None))
        if md5 is not None and (not file.is_file() or md5_of(file) != md5):
            raise DataError(
                f"{file} is not the one that {lock} records: it was damaged, edited, "
                "or written by a stage that was run by hand. Run "
                f"`dvc repro {stage}`, or take it back with `git checkout {file}`"
            )


def _recorded(lock: Path) -> dict[Path, tuple[str, str | None]]:
    """Stage and MD5 by file."""
    try:
        entries = read_entries(lock.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        entries = None
    if entries is None:
        raise DataError(f"{lock} is damaged: take it back with `git checkout {lock}`, or run `dvc repro`")
    folder = lock.resolve().parent
    return {
        folder / out["path"]: (name, out.get("md5"))
        for name, entry in entries.items()
        for out in entry.get("outs") or ()
    }
