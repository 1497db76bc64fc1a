"""Does the run that waits for a job still live? Told by a lock that the kernel frees with the run, never by a process number.

A file for each run, in a folder on the submitter's local disk, which all runs of that machine share.
"""

import fcntl
import uuid
from pathlib import Path

from posttrain.locks import is_held


class Owner:
    """A run, alive as long as this object (and the process) is. `name` is unique among all runs that ever were."""

    def __init__(self, folder: Path) -> None:
        self.name = uuid.uuid4().hex
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = (folder / self.name).open("w", encoding="ascii")
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def close(self) -> None:
        """It waits for no job any more."""
        Path(self._lock.name).unlink(missing_ok=True)
        self._lock.close()


def is_alive(folder: Path, name: str) -> bool:
    """Whether a process holds the run's lock."""
    return is_held(folder / name)
