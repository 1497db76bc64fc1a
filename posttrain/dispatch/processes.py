"""Ends a process with all its descendants, daemons included.

As long as the process that adopts orphans lives, all others are below it. Those left when it is
dead, too, carry a mark in their environment, which children inherit. A process that was started
with an empty environment *and* whose parents are all dead is not found.
"""

import contextlib
import ctypes
import os
import time
from collections.abc import Mapping

import psutil

MARK = "POSTTRAIN_JOB"  # in the environment of all that belongs to a job: the job's folder
_ADOPT_ORPHANS = 36  # PR_SET_CHILD_SUBREAPER of Linux


def adopt_orphans() -> None:
    """Make descendants that lose their parent children of this process, not of the init process."""
    with contextlib.suppress(OSError, AttributeError):  # not Linux: a daemon gets away
        ctypes.CDLL(None).prctl(_ADOPT_ORPHANS, 1, 0, 0, 0)


def kill_tree(pid: int, *, keep_root: bool = False, timeout_s: float = 4.0) -> bool:
    """Kill a process and all below it, its children first so that it still adopts their orphans;
    nothing where it is gone. True where all below is dead."""
    deadline = time.monotonic() + timeout_s
    try:
        root = psutil.Process(pid)
        while (below := _living(root)) and time.monotonic() < deadline:
            _kill(below)
        if not keep_root:
            root.kill()
            psutil.wait_procs([root], timeout=max(deadline - time.monotonic(), 0.1))
    except psutil.NoSuchProcess:
        return True
    return not below


def kill_marked(mark: str, *, timeout_s: float = 4.0) -> list[int]:
    """Kill every process of this user that carries the mark, and all below, but for the caller and
    its parents. Returns the pids that still live in the end: a process that waits for a device dies
    when the device answers."""
    deadline = time.monotonic() + timeout_s
    while (found := _marked(mark)) and time.monotonic() < deadline:
        _kill(found)
    return [process.pid for process in found]


def _kill(processes: list[psutil.Process]) -> None:
    """`psutil` refuses to kill a process that only has the number of the one that was found."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=0.2)


def _living(root: psutil.Process) -> list[psutil.Process]:
    found = []
    for process in root.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def _marked(mark: str) -> list[psutil.Process]:
    """Living ones, those below them included: these may have cleared their environment."""
    asking = {os.getpid(), *(process.pid for process in psutil.Process().parents())}
    below: dict[int, list[psutil.Process]] = {}
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter(["ppid", "uids", "status"]):
        if process.info["uids"] is None or process.info["uids"].real != os.getuid() or process.pid in asking:
            continue
        if process.info["status"] == psutil.STATUS_ZOMBIE:
            continue
        below.setdefault(process.info["ppid"], []).append(process)
        if _environment(process).get(MARK) == mark:
            found[process.pid] = process
    left = [*found]
    while left:
        for process in below.get(left.pop(), []):
            if process.pid not in found:
                found[process.pid] = process
                left.append(process.pid)
    return [*found.values()]


def _environment(process: psutil.Process) -> Mapping[str, str]:
    """Environment that the process was started with; empty where it may not be read."""
    try:
        environment: Mapping[str, str] = process.environ()
    except (psutil.Error, OSError):
        return {}
    return environment
