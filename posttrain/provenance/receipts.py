"""A receipt says what a stage really read and made, and `dvc.lock` is made to say the same.

DVC hashes a stage's inputs when its command is over. What is edited between the command's last look
and DVC's would stand in `dvc.lock` beside a result that it never made, and in the run cache, which
would bring it again. So each stage leaves a receipt before it ends, and whoever comes next (the
guard that outlives `dvc`, the next stage, a flow, `posttrain verify`) holds it against the entry
that DVC wrote, corrects that entry to what was read, and takes the wrong one out of the run cache.
The stage then shows as changed, which it is.
"""

import contextlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum, auto
from pathlib import Path
from typing import Any

import psutil

from posttrain.provenance.cache_integrity import stale_files
from posttrain.provenance.fingerprint import file_states
from posttrain.provenance.lockfile import (
    LOCK,
    differences,
    dvc_lock,
    edit_lock,
    knobs_as_dvc,
    lock_entries,
    mend_files_of_dvc,
    replace_file,
)
from posttrain.provenance.run_cache import forget_runs, publish_run
from posttrain.runtime.state import STATE_DIR

RECEIPTS = STATE_DIR / "receipts"


@dataclass(frozen=True, slots=True)
class Dvc:
    """The process that runs the stage and will record it: its number, and when it was started, in
    seconds since 1970."""

    pid: int
    created: float

    def is_alive(self) -> bool:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(self.pid)
            return bool(process.create_time() == self.created and process.status() != psutil.STATUS_ZOMBIE)
        return False


@dataclass(frozen=True, slots=True)
class Receipt:
    """One run of a stage. `deps` and `outs` are as `dvc.lock` has them; `params` are the texts of
    the files that hold the knobs; `before` is what `dvc.lock` said of the stage when it began, None
    for nothing; `dvc` is who will record it, None for a run by hand, of which no receipt is
    written."""

    stage: str
    command: str
    deps: list[dict[str, Any]]
    params: dict[str, str]
    outs: list[dict[str, Any]]
    before: dict[str, Any] | None
    dvc: Dvc | None
    made_at: float = field(default_factory=time.time)

    def write(self, root: Path) -> None:
        folder = root / RECEIPTS
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / f"{self.stage}.json", json.dumps(asdict(self)))

    def corrected(self, entry: Mapping[str, Any]) -> dict[str, Any] | None:
        """The entry as it should be: of what this run read and made. None where it names other
        files than the run had, so that it cannot be."""
        if entry.get("cmd") != self.command:
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


def settle(root: Path, tell: Callable[[str], None]) -> list[str]:
    """Hold every receipt against `dvc.lock`, and correct what is wrong there; gives the stages
    whose entry was wrong.

    First puts back what a killed DVC has left half written. A receipt that DVC has yet to record
    stays, as long as that DVC lives. Raises Interrupted where a DVC that lives does not let go of
    its lock.
    """
    mend_files_of_dvc(root, tell)
    paths = sorted((root / RECEIPTS).glob("*.json"))
    entries = lock_entries(root) if paths else {}
    found = {_verdict(entries, receipt) for path in paths if (receipt := _read(path)) is not None}
    if not paths or found == {Verdict.AWAITED}:
        return []
    if found - {Verdict.AWAITED, Verdict.TRUE}:
        import dvc.utils.serialize  # noqa: F401 loads DVC, before its lock is held: another DVC waits three seconds for that
    corrected = []
    with dvc_lock(root):
        entries = lock_entries(root)
        for path in sorted((root / RECEIPTS).glob("*.json")):
            receipt = _read(path)
            if receipt is None:
                tell(
                    f"{path} is damaged and is removed: what {path.stem} read is not known; "
                    f"`dvc repro -f {path.stem}` makes sure"
                )
            elif (verdict := _verdict(entries, receipt)) is Verdict.AWAITED:
                continue
            elif verdict is Verdict.FALSE:
                changed = _correct(root, entries[receipt.stage], receipt)
                corrected.append(receipt.stage)
                why = f"what {', '.join(changed)} became while it was recorded"
                inputs = [path for path in changed if (root / path).exists()]
                if stale := stale_files(root, file_states(inputs, root)):
                    why = f"earlier contents of {', '.join(stale)}, whose hash DVC remembered"
                tell(
                    f"{LOCK} said that {receipt.stage} was made from {why}. It now says what was read: `dvc repro` "
                    "runs the stage again where something else lies there; taking an edit back keeps the result"
                )
            elif verdict is Verdict.UNRECORDED:
                _forget_false_runs(root, receipt)
            elif verdict is Verdict.TRUE:
                publish_run(root, receipt.stage, entries[receipt.stage])
            path.unlink(missing_ok=True)
    return corrected


class Verdict(StrEnum):
    """On an entry of `dvc.lock`, by a receipt. AWAITED: the DVC that ran the stage lives and has
    not recorded it; UNRECORDED: it never will."""

    TRUE = auto()
    FALSE = auto()
    AWAITED = auto()
    UNRECORDED = auto()


def _verdict(entries: Mapping[str, Mapping[str, Any]], receipt: Receipt) -> Verdict:
    entry = entries.get(receipt.stage)
    if entry is not None and entry == receipt.corrected(entry):
        return Verdict.TRUE
    if entry == receipt.before or entry is None:
        return Verdict.AWAITED if receipt.dvc is not None and receipt.dvc.is_alive() else Verdict.UNRECORDED
    return Verdict.FALSE


def _correct(root: Path, entry: Mapping[str, Any], receipt: Receipt) -> list[str]:
    """What was wrong. The caller holds DVC's lock."""
    right = receipt.corrected(entry)

    def edit(stages: dict[str, Any]) -> None:
        if right is None:
            del stages[receipt.stage]
        else:
            stages[receipt.stage] = right

    edit_lock(root, edit)
    _forget_false_runs(root, receipt)
    return differences(entry, right) if right is not None else ["dvc.yaml"]


def _forget_false_runs(root: Path, receipt: Receipt) -> None:
    forget_runs(root, lambda run: _is_false(run, receipt), newer_than=receipt.made_at)


def _is_false(run: Mapping[str, Any], receipt: Receipt) -> bool:
    """Whether an entry of the run cache says of this stage's outputs something else than its
    receipt."""
    if run.get("cmd") != receipt.command or {one["path"] for one in run.get("outs") or ()} != {
        one["path"] for one in receipt.outs
    }:
        return False
    return receipt.corrected(run) != run


def _read(path: Path) -> Receipt | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        receipt = Receipt(**{**content, "dvc": Dvc(**content["dvc"])})
        entries = [*receipt.deps, *receipt.outs]
        is_good = all(isinstance(one["path"], str) and isinstance(one["md5"], str) for one in entries) and isinstance(
            receipt.made_at, float
        )
        return receipt if is_good and isinstance(receipt.params, dict) else None
    except (OSError, ValueError, TypeError, KeyError):
        return None
