"""Runs a stage in a job that shares no disk with the submitter: the tree comes from S3, and
everything that the stage leaves goes back there.

`python -m posttrain.pipeline.job.s3 OPTIONS -- STAGE` in an empty folder of its own, with this
package installed. It ends with the stage's own exit code, and with 75 where the stage is done and
its result could not be shipped. SIGTERM reaches the stage, which ends at its next checkpoint; that
is shipped within the rest of the backend's grace period.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from dvc.exceptions import DvcException
from dvc.repo import Repo

from posttrain.pipeline.remote.archive import pack, unpack
from posttrain.pipeline.remote.cache import config_section, fetch_result, pull_inputs, push_result
from posttrain.pipeline.remote.checkpoints import ShippedCheckpoints
from posttrain.pipeline.remote.names import JobFolder, add_options
from posttrain.pipeline.remote.object_store import ObjectStore
from posttrain.pipeline.snapshot import FROZEN, configure_dvc, find_stage, stage_key
from posttrain.provenance.costs import COSTS
from posttrain.runtime.exits import DataError, Interrupted, StageError, as_shell, exit_codes
from posttrain.runtime.redaction import redact
from posttrain.runtime.state import STATE_DIR, TRACES, WANDB
from posttrain.runtime.worker import STOP_SIGNALS

ATTEMPT = "POSTTRAIN_ATTEMPT"  # the dispatcher sets it
TREE = Path("tree")
STAGED = "artifacts"  # wandb's second copy of tables, found again by its path on this machine alone


@dataclass(slots=True)
class Preemption:
    """Signals of the backend to end. Before the stage runs one ends the job at once, while it runs
    the stage decides, afterwards the rest is shipped as far as the grace period lasts."""

    signals: list[int] = field(default_factory=list)
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def handle_signals(self) -> None:
        for number in STOP_SIGNALS:
            signal.signal(number, self._stop)

    def has_come(self) -> bool:
        return bool(self.signals)

    def _stop(self, number: int, _: FrameType | None) -> None:
        self.signals.append(number)
        if self.process is None:
            raise Interrupted(f"asked to stop ({signal.Signals(number).name}) before the stage began; run again")
        self.process.send_signal(signal.SIGTERM)  # nothing where it is over


def run(stage: str, store: ObjectStore, place: JobFolder, attempt: int) -> int:
    """The exit code."""
    preemption = Preemption()
    preemption.handle_signals()
    store.patiently(store.check)
    if not store.claim(place.claim(attempt)):
        raise Interrupted(
            f"{stage} is run by another process as attempt {attempt} already: its pod was replaced; "
            "two would spoil each other's files"
        )
    _bring_tree(store, place, attempt)
    os.chdir(TREE)
    _bring_inputs(stage, store, place)
    checkpoints = ShippedCheckpoints(store, place.folder("checkpoints"), STATE_DIR / "checkpoints")
    if num_brought := checkpoints.bring():
        _log(f"{num_brought} checkpoints of earlier attempts are here")
    code = _run_stage(stage, store, checkpoints, preemption)
    try:
        if code != 0:
            checkpoints.ship()
        _ship_records(store, place, attempt)
        if code == 0:
            with Repo() as repo, repo.lock:
                push_result(repo, find_stage(repo, stage), store)
            _log("the result is shipped")
    except StageError as error:
        _log(f"what the stage left could not all be shipped: {error}")
        return code or error.code
    return code


def _bring_tree(store: ObjectStore, place: JobFolder, attempt: int) -> None:
    """The files, and DVC's settings."""
    with tempfile.TemporaryDirectory(dir=".") as folder:
        archive = Path(folder) / "snapshot.tar.gz"
        try:
            store.get(place.snapshot(attempt), archive)
        except FileNotFoundError as error:
            raise Interrupted(
                f"{store.remote.url}/{place.snapshot(attempt)} is not there: "
                "the run that sent it has taken it back since. Run again"
            ) from error
        unpack(archive, TREE)
    configure_dvc(TREE, "../../cache", FROZEN + config_section(store.remote))


def _bring_inputs(stage: str, store: ObjectStore, place: JobFolder) -> None:
    """From DVC's remote; and the result, where another attempt or another person has it already."""
    (STATE_DIR / "checkpoints").mkdir(parents=True, exist_ok=True)
    try:
        with Repo() as repo, repo.lock:
            found = find_stage(repo, stage)
            pull_inputs(repo, found, store)
            if stage_key(found) != place.key:
                raise DataError(
                    f"the tree that came for {stage} has other inputs than were sent, so nothing was run: "
                    "are all its deps files of the tree?"
                )
            if fetch_result(repo, found, store):
                _log("S3 has a result of these inputs already")
    except DvcException as error:
        raise DataError(
            f"{stage} cannot be prepared from what came, so nothing was run: {error}. "
            "Are all its deps files of the tree?"
        ) from error


def _run_stage(stage: str, store: ObjectStore, checkpoints: ShippedCheckpoints, preemption: Preemption) -> int:
    if preemption.has_come():  # in the middle of a call that swallows exceptions
        raise Interrupted("asked to stop before the stage began; run again")
    command = [sys.executable, "-u", "-m", "posttrain.pipeline.job.shared_disk", "--", stage]
    preemption.process = process = subprocess.Popen(command)
    while True:
        try:
            code = process.wait(store.remote.ship_every_s)
        except subprocess.TimeoutExpired:
            try:
                if num_new := checkpoints.ship():
                    _log(f"{num_new} new checkpoints are shipped")
            except StageError as error:
                _log(f"no checkpoint could be shipped for now, the stage goes on: {error}")
            continue
        if code < 0 and preemption.has_come():  # so early that it had no handler yet
            return Interrupted.code
        return as_shell(code)


def _ship_records(store: ObjectStore, place: JobFolder, attempt: int) -> None:
    for name in (TRACES, f"{TRACES}-wal"):
        if (STATE_DIR / name).exists():
            store.put(STATE_DIR / name, f"{place.folder('traces')}{attempt}/{name}")
    runs = STATE_DIR / WANDB
    if runs.is_dir():
        with tempfile.TemporaryDirectory() as folder:
            archive = Path(folder) / "wandb.tar.gz"
            pack(runs, archive, is_left_out=lambda path: path.parts[0] == STAGED or (runs / path).is_symlink())
            store.put(archive, f"{place.folder('wandb')}{attempt}.tar.gz")
    if COSTS.exists():
        store.put(COSTS, f"{place.folder('costs')}{attempt}.jsonl")


def _log(line: str) -> None:
    print(f"[remote] {redact(line)}", file=sys.stderr, flush=True)


def _set_home() -> None:
    """A container may run as a user without a home; files that libraries keep go beside the tree
    then."""
    here = Path.cwd()
    os.environ |= {"DVC_SITE_CACHE_DIR": str(here / "site"), "DVC_NO_ANALYTICS": "1"}
    if not os.access(os.path.expanduser("~"), os.W_OK):
        os.environ["HOME"] = str(here)


def main() -> None:
    parser = argparse.ArgumentParser("posttrain.pipeline.job.s3", description="Run one stage of a tree in S3.")
    add_options(parser)
    parser.add_argument("stage")
    given = parser.parse_args()
    with exit_codes():
        _set_home()
        sys.exit(run(given.stage, ObjectStore(given.remote), given.place, int(os.environ[ATTEMPT])))


if __name__ == "__main__":
    main()
