"""What outlives a `dvc repro`: it holds what DVC wrote against what the stages read, and mends what
a DVC that was killed has left.

`python -m posttrain.provenance.lock_watchdog PID CREATED` in the tree, started by the first stage
of that DVC; one for each. It costs a look at `dvc.lock` ten times a second, and ends with its DVC.
"""

import contextlib
import os
import select
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil

from posttrain.provenance.cache_integrity import forget_stale_hashes, remove_damaged_outs
from posttrain.provenance.lockfile import LOCK, keep_last_whole, pids_of_dvc
from posttrain.provenance.receipts import Dvc, settle
from posttrain.provenance.run_cache import forget_unrecorded_runs, take_over_runs
from posttrain.provenance.run_records import record_restored
from posttrain.runtime.exits import Interrupted, StageError
from posttrain.runtime.locks import held_if_free, is_held
from posttrain.runtime.state import STATE_DIR, private_folder

GUARDS = STATE_DIR / "guards"
_LOOK_S = 0.1


def find_dvc(environment: Mapping[str, str], root: Path) -> Dvc | None:
    """The DVC above this process, None where there is none. DVC tells its commands the stage
    (`DVC_STAGE`); who was not told is DVC.

    Raises Interrupted where it is dead already: whoever has adopted this process since has no lock
    of DVC's.
    """
    stage = environment.get("DVC_STAGE")
    if stage is None:
        return None
    with contextlib.suppress(psutil.Error):
        process = psutil.Process().parent()
        while process is not None and process.environ().get("DVC_STAGE") == stage:
            process = process.parent()
        if process is not None and process.pid in pids_of_dvc(root):
            return Dvc(process.pid, process.create_time())
    raise Interrupted("its dvc died before it began, so nobody would record the result: run `dvc repro` again")


def start_guard(root: Path, dvc: Dvc) -> None:
    """Unless it is there."""
    if is_held(root / GUARDS / str(dvc.pid)):
        return
    command = [sys.executable, "-P", "-m", "posttrain.provenance.lock_watchdog", str(dvc.pid), repr(dvc.created)]
    ours = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(ours), os.environ.get("PYTHONPATH")]))}
    # In a session of its own: what ends a terminal's or a job's processes is not to end this. It
    # speaks where DVC speaks.
    subprocess.Popen(
        command, cwd=root, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True
    )


def guard(root: Path, dvc: Dvc) -> None:
    """Until that DVC is over."""
    with held_if_free(private_folder(root / GUARDS) / str(dvc.pid)) as is_first:
        if not is_first:
            return
        keep_last_whole(root)
        with contextlib.suppress(StageError, OSError, sqlite3.Error):  # the end is the next occasion
            forget_stale_hashes(root, _tell)
        take_over_runs(root)
        seen = _state(root / LOCK)
        while _lives_on(dvc):
            now = _state(root / LOCK)
            if now != seen:
                seen = now
                with contextlib.suppress(StageError):  # DVC is at work: its end is the next occasion
                    keep_last_whole(root)
                    settle(root, _tell)
        settle(root, _tell)
        keep_last_whole(root)
        forget_stale_hashes(root, _tell)
        record_restored(root)
        forget_unrecorded_runs(root, newer_than=dvc.created)
        remove_damaged_outs(root, _tell)


def main() -> None:
    root = Path.cwd()
    dvc = Dvc(int(sys.argv[1]), float(sys.argv[2]))
    try:
        guard(root, dvc)
    except StageError as error:
        _tell(str(error))


def _lives_on(dvc: Dvc) -> bool:
    """Waits a moment for its end."""
    with contextlib.suppress(OSError, AttributeError):  # not Linux: looked at below
        end = os.pidfd_open(dvc.pid)
        try:
            if select.select([end], [], [], _LOOK_S)[0]:
                return False
        finally:
            os.close(end)
    return dvc.is_alive()


def _state(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_mtime_ns, status.st_size


def _tell(line: str) -> None:
    with contextlib.suppress(OSError):  # the terminal is closed
        print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
