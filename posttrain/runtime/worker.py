"""One of several processes of a stage owes the frame its number while it lives, and a
word on how it ended.

A file that it holds locked says that it lives: the kernel frees the lock with any death. Where one
process dies the others fail in the middle of what they do together; such a failure is a
consequence, and is told from a failure of one's own by looking whether another has ended.
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

RANKS, CHECKPOINTS = "POSTTRAIN_RANKS", "POSTTRAIN_CHECKPOINTS"
STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)  # SLURM warns by the second
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux
_PATIENCE_S = (
    2.0  # for another's death to be seen: its connections and its lock are freed within milliseconds of each other
)


@dataclass(frozen=True, slots=True)
class End:
    """`code` is the process's exit code; `at` the time of day in seconds; `is_follow_up`: it failed
    because another process had ended before."""

    code: int
    message: str
    at: float
    peak_mib: float
    is_follow_up: bool = False


def run_as_rank(work: Callable[[], None], to_end: Callable[[BaseException], tuple[int, str] | None]) -> None:
    """Run `work` as one of the processes that the environment tells of, write down how it ended,
    and exit.

    `to_end` gives code and message of an error that has a meaning, None of one that is a bug: its
    traceback is printed.
    """
    die_with_parent(signal.SIGKILL)
    folder, rank, number = Path(os.environ[RANKS]), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if rank:  # what is for a person to see is told once
        os.environ.update(POSTTRAIN_TRACES="off", WANDB_MODE="disabled")
    with (folder / f"rank-{rank}.pid").open("w", encoding="ascii") as lock:
        take_lock(lock)
        lock.write(str(os.getpid()))
        lock.flush()
        _listen(_stop)
        code, message, is_follow_up = 0, "", False
        try:
            work()
        except Exception as error:  # the boundary: every end is written down
            _listen(signal.SIG_IGN)  # where another has failed accelerate asks this one to end, too: it is about to
            end = to_end(error)
            code, message = end or (1, "")
            is_follow_up = (end is None or isinstance(error, _Stopped)) and _another_has_ended(folder, rank, number)
            if end is None and not is_follow_up:
                traceback.print_exc()
        _listen(signal.SIG_IGN)
        peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        _write_end(folder, rank, End(code, redact(message), time.time(), peak_mib, is_follow_up))
    sys.exit(code)


def die_with_parent(number: signal.Signals) -> None:
    """A killed frame must not leave trainers behind: its locks are gone with it, and the next run
    would write the same files."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, int(number), 0, 0, 0)


def read_end(folder: Path, rank: int) -> End | None:
    """None where the process is not over, or was killed."""
    try:
        return End(**json.loads((folder / f"rank-{rank}.json").read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None


def read_pid(folder: Path, rank: int) -> int | None:
    """The process's number, None where it has not begun."""
    try:
        return int((folder / f"rank-{rank}.pid").read_text(encoding="ascii") or "0") or None
    except FileNotFoundError:
        return None


def is_alive(folder: Path, rank: int) -> bool:
    """False where it has not begun, too."""
    return is_held(folder / f"rank-{rank}.pid")


class _Stopped(Interrupted):
    """By a signal, outside the training."""


def _listen(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
    for number in STOP_SIGNALS:
        signal.signal(number, handler)


def _stop(number: int, _: FrameType | None) -> None:
    """The training listens for itself; outside of it there is no step to finish."""
    raise _Stopped(
        f"asked to stop ({signal.Signals(number).name}) outside of the training: "
        "run again to go on from the last checkpoint"
    )


def _another_has_ended(folder: Path, rank: int, number: int) -> bool:
    deadline = time.monotonic() + _PATIENCE_S
    others = [other for other in range(number) if other != rank and read_pid(folder, other) is not None]
    while others and time.monotonic() < deadline:
        if any(read_end(folder, other) is not None or not is_alive(folder, other) for other in others):
            return True
        time.sleep(0.05)
    return False


def _write_end(folder: Path, rank: int, end: End) -> None:
    partial = folder / f".rank-{rank}.json"
    partial.write_text(json.dumps(asdict(end)), encoding="utf-8")
    partial.rename(folder / f"rank-{rank}.json")
