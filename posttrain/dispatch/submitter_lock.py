"""Lock of the run that waits for a job: the kernel frees it when the run dies, so a held lock means
a living run. A PID would not do.

A file for each run, in a folder on the submitter's local disk, which all runs of that machine
share.
"""

import uuid
from pathlib import Path

from posttrain.runtime.locks import hold, is_held
from posttrain.runtime.state import private_folder


class Owner:
    """A run, alive as long as this object (and the process) is. `name` is unique among all runs
    that ever were."""

    def __init__(self, folder: Path) -> None:
        self.name = uuid.uuid4().hex
        self._lock = hold(private_folder(folder) / self.name)

    def close(self) -> None:
        """It waits for no job any more."""
        Path(self._lock.name).unlink(missing_ok=True)
        self._lock.close()


def is_alive(folder: Path, name: str) -> bool:
    """True where a process holds the run's lock."""
    return is_held(folder / name)
