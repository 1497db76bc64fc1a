"""Receipts: each stage writes what it read and made before it ends, and `dvc.lock` is corrected to
say the same.

DVC hashes a stage's inputs when its command is over. An edit between the command's last comparison
and DVC's hashing would stand in `dvc.lock` beside a result that it never made, and in the run
cache, which would bring it again. So whoever comes next (the watchdog that outlives `dvc`, the next
stage, a flow, `posttrain verify`) compares the receipt with the entry that DVC wrote, corrects the
entry, and takes the wrong one out of the run cache. The stage then shows as changed, which it is.
"""

import contextlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import psutil

from posttrain.provenance.cache_integrity import forget_stale
from posttrain.provenance.fingerprint import file_states, knobs_as_dvc
from posttrain.provenance.lockfile import (
    LOCK,
    differences,
    dvc_lock,
    lock_entries,
    repair_dvc_files,
    replace_file,
    write_entry,
)
from posttrain.provenance.run_cache import publish_run, remove_runs
from posttrain.runtime.state import STATE_DIR

RECEIPTS = STATE_DIR / "receipts"


@dataclass(frozen=True, slots=True)
class Dvc:
    """The process that runs the stage and will record it: pid, and start in seconds since 1970."""

    pid: int
    created: float

    def is_alive(self) -> bool:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(self.pid)
            return bool(process.create_time() == self.created and process.status() != psutil.STATUS_ZOMBIE)
        return False


@dataclass(frozen=True, slots=True)
class Receipt:
    """Record of one run of a stage. `deps` and `outs` are in the form of `dvc.lock`; `params` are
    the texts of the files that hold the knobs; `before` is the stage's entry in `dvc.lock` when it
    began, None without one; `dvc` will record it."""

    stage: str
    command: str
    deps: list[dict[str, Any]]
    params: dict[str, str]
    outs: list[dict[str, Any]]
    before: dict[str, Any] | None
    dvc: Dvc
    made_at: float = field(default_factory=time.time)

    def write(self, root: Path) -> None:
        folder = root / RECEIPTS
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / f"{self.stage}.json", json.dumps(asdict(self)))

    def corrected(self, entry: Mapping[str, Any]) -> dict[str, Any] | None:
        """The entry as this run read and made it; None where it names other files."""
        if entry.get("cmd") != self.command:  # dvc.yaml was edited while DVC ran
            return None
        right = dict(entry)
        for part, known in (("deps", self.deps), ("outs", self.outs)):
            states = {one["path"]: one for one in known}
            if {one["path"] for one in entry.get(part) or ()} != set(states):
                return None
            if part in entry:
                right[part] = [states[one["path"]] for one in entry[part]]
        if "params" in entry:
            right["params"] = {
                file: knobs_as_dvc(self.params.get(file, ""), knobs) for file, knobs in entry["params"].items()
            }
        return right


# What a receipt says of the stage's entry in `dvc.lock`. Awaited: the DVC that ran the stage lives
# and has not recorded it; unrecorded: it never will.
Verdict: TypeAlias = Literal["true", "false", "awaited", "unrecorded"]


def apply_receipts(root: Path, log: Callable[[str], None]) -> list[str]:
    """Repair what a killed DVC has half written, and correct the entries of `dvc.lock` that
    disagree with their receipts; gives their stages. One that a living DVC has yet to record stays.
    Raises Interrupted where a living DVC keeps its lock."""
    repair_dvc_files(root, log)
    # First without DVC's lock: most calls find nothing to do, and no stage is to wait for them.
    paths = sorted((root / RECEIPTS).glob("*.json"))
    entries = lock_entries(root) if paths else {}
    found = {_verdict(entries, receipt) for path in paths if (receipt := _read(path)) is not None}
    if not paths or found == {"awaited"}:
        return []
    if found - {"awaited", "true"}:
        import dvc.utils.serialize  # noqa: F401 loads DVC, before its lock is taken: another DVC waits three seconds for that
    corrected = []
    with dvc_lock(root):
        # Again under the lock: a watchdog and a stage may come in the same moment.
        entries = lock_entries(root)
        for path in sorted((root / RECEIPTS).glob("*.json")):
            receipt = _read(path)
            verdict = _verdict(entries, receipt) if receipt is not None else None
            if receipt is None:
                log(
                    f"{path} is damaged and is removed: the inputs of {path.stem} are not known; "
                    f"`dvc repro -f {path.stem}` makes sure"
                )
            elif verdict == "awaited":
                continue
            elif verdict == "false":
                _correct(root, entries[receipt.stage], receipt, log)
                corrected.append(receipt.stage)
            elif verdict == "unrecorded":
                _remove_false_runs(root, receipt)
            else:
                publish_run(root, receipt.stage, entries[receipt.stage])
            path.unlink(missing_ok=True)
    return corrected


def _verdict(entries: Mapping[str, Mapping[str, Any]], receipt: Receipt) -> Verdict:
    entry = entries.get(receipt.stage)
    if entry is not None and entry == receipt.corrected(entry):
        return "true"
    if entry == receipt.before or entry is None:  # DVC has not written its entry
        return "awaited" if receipt.dvc.is_alive() else "unrecorded"
    return "false"


def _correct(root: Path, entry: Mapping[str, Any], receipt: Receipt, log: Callable[[str], None]) -> None:
    """Write the right entry, or none; the caller has DVC's lock."""
    right = receipt.corrected(entry)
    write_entry(root, receipt.stage, right)
    _remove_false_runs(root, receipt)
    changed = differences(entry, right) if right is not None else ["dvc.yaml"]
    why = f"what {', '.join(changed)} became while it was recorded"
    inputs = [path for path in changed if (root / path).exists()]
    if stale := forget_stale(root, file_states(inputs, root)):
        why = f"earlier contents of {', '.join(stale)}, whose hash DVC remembered"
    log(
        f"{LOCK} said that {receipt.stage} was made from {why}. It now says what was read: `dvc repro` "
        "runs the stage again where something else lies there; taking an edit back keeps the result"
    )


def _remove_false_runs(root: Path, receipt: Receipt) -> None:
    """Remove the runs in the cache that contradict the receipt about this stage's outputs."""

    def is_false(run: Mapping[str, Any]) -> bool:
        paths = {one["path"] for one in run.get("outs") or ()}
        is_of_stage = run.get("cmd") == receipt.command and paths == {one["path"] for one in receipt.outs}
        return is_of_stage and receipt.corrected(run) != run

    remove_runs(root, is_false, newer_than=receipt.made_at)


def _read(path: Path) -> Receipt | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        receipt = Receipt(**{**content, "dvc": Dvc(**content["dvc"])})
        entries = [*receipt.deps, *receipt.outs]
        is_good = all(isinstance(one["path"], str) and isinstance(one["md5"], str) for one in entries)
        return receipt if is_good and isinstance(receipt.made_at, float) and isinstance(receipt.params, dict) else None
    except (OSError, ValueError, TypeError, KeyError):
        return None
