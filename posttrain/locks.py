"""Does somebody live? Told by a lock on a file, which the kernel frees with its holder, and never by a process number: it may be another's by now."""

import fcntl
from pathlib import Path


def is_held(lock: Path) -> bool:
    """False where there is no such file."""
    try:
        file = lock.open(encoding="ascii")
    except FileNotFoundError:
        return False
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False
