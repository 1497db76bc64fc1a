"""Run a module as a process that ends with who started it, however that ended: `python -m
flows.die_with_parent PARENT MODULE …`."""

import os
import signal
import sys

from posttrain.runtime.worker import die_with_parent


def end_with(parent: int, number: signal.Signals) -> None:
    """This process gets the signal when `parent` ends, or the thread of it that started this one.
    Exits where that is so already."""
    die_with_parent(number)
    if os.getppid() != parent:
        sys.exit(f"process {parent}, which this one is for, has ended before it began")


if __name__ == "__main__":
    end_with(int(sys.argv[1]), signal.SIGTERM)  # a worker ends its runs
    os.execv(sys.executable, [sys.executable, "-m", *sys.argv[2:]])  # noqa: S606 the signal is kept
