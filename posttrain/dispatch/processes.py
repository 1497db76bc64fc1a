"""How is a process ended with everything that it started, also what has turned into a daemon?"""

import contextlib
import ctypes
import time

import psutil

_ADOPT_ORPHANS = 36  # PR_SET_CHILD_SUBREAPER of Linux


def adopt_orphans() -> None:
    """From now on who loses its parent below this process becomes its child, and not the init process's."""
    with contextlib.suppress(OSError, AttributeError):  # not Linux: a daemon gets away
        ctypes.CDLL(None).prctl(_ADOPT_ORPHANS, 1, 0, 0, 0)


def kill_tree(pid: int, *, keep_root: bool = False, timeout_s: float = 4.0) -> None:
    """Kill a process and all below it, its children first so that it still adopts what they leave behind; nothing where it is gone."""
    deadline = time.monotonic() + timeout_s
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        while (below := _living(root)) and time.monotonic() < deadline:
            for process in below:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(below, timeout=0.2)
        if not keep_root:
            root.kill()
            psutil.wait_procs([root], timeout=max(deadline - time.monotonic(), 0.1))


def _living(root: psutil.Process) -> list[psutil.Process]:
    found = []
    for process in root.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found
