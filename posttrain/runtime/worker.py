"""Worker process of a stage: writes its pid while it runs and its exit status at the end.

A worker lives as long as its file is locked: the kernel frees the lock with any death. Where one
worker dies the others fail in the middle of a collective operation. A worker's failure counts as
such a consequence where another worker has ended before.
"""

import ctypes
import json
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType

from posttrain.runtime.exits import Interrupted
from posttrain.runtime.locks import is_held, take_lock
from posttrain.runtime.redaction import redact

WORKERS, CHECKPOINTS = "POSTTRAIN_WORKERS", "POSTTRAIN_CHECKPOINTS"  # folders, for the workers of a stage
STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)  # SLURM warns by the second
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux
_ELSEWHERE = "failed-elsewhere"  # a file beside those of the workers
# Another's death is seen by its connections and by its lock, milliseconds apart.
_PATIENCE_S = 2.0


@dataclass(frozen=True, slots=True)
class WorkerEnd:
    """`code` is the process's exit code; `at` the time of day in seconds; `is_follow_up`: it failed
    because another worker had ended before."""

    code: int
    message: str
    at: float
    peak_mib: float
    is_follow_up: bool = False


def run_worker(work: Callable[[], None], to_end: Callable[[BaseException], tuple[int, str] | None]) -> None:
    """Run `work` as the worker that the environment names (RANK, WORLD_SIZE), write its exit status
    and exit.

    `to_end` gives code and message of an error that has a meaning, None of one that is a bug: its
    traceback is printed.
    """
    die_with_parent(signal.SIGKILL)
    folder, rank, world_size = Path(os.environ[WORKERS]), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if rank:  # episodes and metrics are logged by the first worker alone
        os.environ.update(POSTTRAIN_TRACES="off", WANDB_MODE="disabled")
    with (folder / f"worker-{rank}.pid").open("w", encoding="ascii") as lock:
        take_lock(lock)
        lock.write(str(os.getpid()))
        lock.flush()
        _on_stop_signals(_stop)
        code, message, is_follow_up = 0, "", False
        try:
            work()
        except Exception as error:  # the boundary: every exit status is written
            # Where another has failed accelerate sends SIGTERM to this one, which is ending
            # already.
            _on_stop_signals(signal.SIG_IGN)
            end = to_end(error)
            code, message = end or (1, "")
            is_follow_up = (end is None or isinstance(error, _Stopped)) and _another_has_ended(folder, rank, world_size)
            if end is None and not is_follow_up:
                traceback.print_exc()
        _on_stop_signals(signal.SIG_IGN)
        peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        _write_end(folder, rank, WorkerEnd(code, redact(message), time.time(), peak_mib, is_follow_up))
    sys.exit(code)


def die_with_parent(number: signal.Signals) -> None:
    """Have the kernel send this signal to the process when its parent dies: a killed runner's locks
    are free, and trainers that lived on would write the same files as the next run."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, int(number), 0, 0, 0)


def read_end(folder: Path, rank: int) -> WorkerEnd | None:
    """Exit status of a worker; None while it runs, or where it was killed."""
    try:
        return WorkerEnd(**json.loads((folder / f"worker-{rank}.json").read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None


def read_pid(folder: Path, rank: int) -> int | None:
    """Pid of a worker, None where it has not begun."""
    try:
        return int((folder / f"worker-{rank}.pid").read_text(encoding="ascii") or "0") or None
    except FileNotFoundError:
        return None


def is_alive(folder: Path, rank: int) -> bool:
    """False where it has not begun, too."""
    return is_held(folder / f"worker-{rank}.pid")


def mark_failure_elsewhere(folder: Path) -> None:
    """Tell the workers of this node that one of another node has failed: they see no file of it."""
    (folder / _ELSEWHERE).touch()


class _Stopped(Interrupted):
    """Stopped by a signal outside of the training."""


def _on_stop_signals(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
    for number in STOP_SIGNALS:
        signal.signal(number, handler)


def _stop(number: int, _: FrameType | None) -> None:
    """Outside of the training, which has a handler of its own, there is no step to finish."""
    raise _Stopped(
        f"asked to stop ({signal.Signals(number).name}) outside of the training: "
        "run again to go on from the last checkpoint"
    )


def _another_has_ended(folder: Path, rank: int, world_size: int) -> bool:
    deadline = time.monotonic() + _PATIENCE_S
    others = [other for other in range(world_size) if other != rank and read_pid(folder, other) is not None]
    is_one_node = int(os.environ.get("LOCAL_WORLD_SIZE", world_size)) == world_size
    while (others or not is_one_node) and time.monotonic() < deadline:
        if (folder / _ELSEWHERE).exists():
            return True
        if any(read_end(folder, other) is not None or not is_alive(folder, other) for other in others):
            return True
        time.sleep(0.05)
    return False


def _write_end(folder: Path, rank: int, end: WorkerEnd) -> None:
    partial = folder / f".worker-{rank}.json"
    partial.write_text(json.dumps(asdict(end)), encoding="utf-8")
    partial.rename(folder / f"worker-{rank}.json")
