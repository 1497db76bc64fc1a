"""Watchdog, one per `dvc repro`: checks `dvc.lock` against receipts, and repairs it after a crash.

`python -m posttrain.provenance.lock_watchdog PID CREATED` in the tree, started by the first stage
of that DVC. It outlives a DVC that is killed. It costs a look at `dvc.lock` ten times a second.
"""

import contextlib
import os
import select
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil

from posttrain.provenance.lockfile import LOCK, pids_of_dvc, save_backup
from posttrain.provenance.receipts import Dvc, apply_receipts
from posttrain.provenance.run_cache import import_verified_runs, remove_unrecorded_runs
from posttrain.provenance.run_records import record_restored
from posttrain.runtime.exits import Interrupted, StageError
from posttrain.runtime.locks import held_if_free, is_held
from posttrain.runtime.state import STATE_DIR, private_folder

WATCHDOGS = STATE_DIR / "watchdogs"
_POLL_S = 0.1


def find_dvc(environment: Mapping[str, str], root: Path) -> Dvc | None:
    """The DVC above this process: the first without the `DVC_STAGE` that DVC sets for its commands;
    None without one. Raises Interrupted where it is dead: its heir has no lock of DVC's."""
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


def start_watchdog(root: Path, dvc: Dvc) -> None:
    """Start the watchdog of this DVC, where none runs."""
    if is_held(root / WATCHDOGS / str(dvc.pid)):
        return
    command = [sys.executable, "-P", "-m", "posttrain.provenance.lock_watchdog", str(dvc.pid), repr(dvc.created)]
    ours = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(ours), os.environ.get("PYTHONPATH")]))}
    # In a session of its own: what ends a terminal's or a job's processes is not to end this. Its
    # stderr is DVC's.
    subprocess.Popen(
        command, cwd=root, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True
    )


def watch(root: Path, dvc: Dvc) -> None:
    """Check `dvc.lock` whenever it changes until that DVC is over, then everything once more."""
    # The lock is freed with this process, so a watchdog that was killed is started again.
    with held_if_free(private_folder(root / WATCHDOGS) / str(dvc.pid)) as is_first:
        if not is_first:
            return
        save_backup(root)
        import_verified_runs(root)
        seen = _state(root / LOCK)
        while _lives_on(dvc):
            now = _state(root / LOCK)
            if now != seen:
                seen = now
                with contextlib.suppress(StageError):  # DVC is at work: checked again at the end
                    save_backup(root)
                    apply_receipts(root, _log)
        # In this order: false entries are corrected before the file is backed up, and runs are
        # recorded before those without a record go.
        apply_receipts(root, _log)
        save_backup(root)
        record_restored(root)
        remove_unrecorded_runs(root, newer_than=dvc.created)


def main() -> None:
    try:
        watch(Path.cwd(), Dvc(int(sys.argv[1]), float(sys.argv[2])))
    except StageError as error:
        _log(str(error))


def _lives_on(dvc: Dvc) -> bool:
    """True if it lives after a moment's wait for its end."""
    with contextlib.suppress(OSError, AttributeError):  # not Linux: checked below
        end = os.pidfd_open(dvc.pid)
        try:
            if select.select([end], [], [], _POLL_S)[0]:
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


def _log(line: str) -> None:
    with contextlib.suppress(OSError):  # the terminal is closed
        print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
