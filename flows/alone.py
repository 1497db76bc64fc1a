"""Who computes this? One run of the machine at a time: what it brings lies in the run cache when the next one's turn comes.

Experiments beside each other share most of their stages, and each would start them. A lock for each key, which the kernel frees with its holder.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from posttrain.exits import Interrupted

_LOOK_S = 0.5


@contextlib.contextmanager
def alone_with(folder: Path, key: str, tell: Callable[[str], None], *, is_stopped: Callable[[], bool]) -> Iterator[bool]:
    """Hold what `key` names against threads and processes that share `folder`; yields whether another had it before. Raises Interrupted once
    `is_stopped`."""
    folder.mkdir(parents=True, exist_ok=True)
    path, has_waited = folder / key, False
    while True:
        lock = path.open("w", encoding="ascii")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(path.stat(), os.fstat(lock.fileno())):
                    break
            lock.close()  # its holder took the file away between the two calls
        except BlockingIOError:
            lock.close()
            if is_stopped():
                raise Interrupted("it waited for another run that computes the same, and was stopped. Run it again") from None
            if not has_waited:
                tell("another run of this machine computes the same; waiting for what it brings")
            has_waited = True
            time.sleep(_LOOK_S)
    try:
        yield has_waited
    finally:
        path.unlink(missing_ok=True)
        lock.close()
