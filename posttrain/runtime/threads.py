"""Number of threads of a stage: the cores that are idle when it starts, at most two, or
`POSTTRAIN_THREADS`.

A small model in training computes two parts of a step side by side (`models/parts.py`); all else
shares out each operation, which takes half to all of the time on two idle cores and up to twice as
long where another program has one of them. A machine fact, not a knob: matrix products of these
sizes are shared out by rows and columns of the result, never along a sum, so one thread and two
make the same bits (tested on a training step). On Intel's processors MKL does so only where it is
told. A small model gains nothing from a third.
"""

import os
import sys
from pathlib import Path

import psutil

from posttrain.runtime.exits import ConfigurationError

VARIABLE = "POSTTRAIN_THREADS"
_MOST = 2
_LOOK_S = 0.2
_CPUS = Path("/proc/cpuinfo")  # absent outside Linux, where torch does not compute with MKL


def choose_num_threads() -> int:
    """Raises ConfigurationError where `POSTTRAIN_THREADS` is set and not a positive number."""
    asked = os.environ.get(VARIABLE)
    if asked is None:
        process = psutil.Process()
        allowed = len(process.cpu_affinity()) if hasattr(process, "cpu_affinity") else psutil.cpu_count()
        return idle_cores(psutil.cpu_percent(_LOOK_S), num_cores=psutil.cpu_count(), num_allowed=allowed)
    if not asked.isdecimal() or int(asked) < 1:
        raise ConfigurationError(
            f"{VARIABLE} is {asked!r}, not a positive number of threads; unset it to use the idle cores"
        )
    return int(asked)


def idle_cores(busy_percent: float, *, num_cores: int, num_allowed: int) -> int:
    """2 cores busy to 60 % have one to spare; never less than one, nor more than two or than this
    process may run on."""
    return max(1, min(round(num_cores * (1 - busy_percent / 100)), num_allowed, _MOST))


def limit_threads(num_threads: int) -> None:
    """Limit the threads of this process's libraries, and of the processes that it starts."""
    free_bits_of_threads()
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[variable] = str(num_threads)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(num_threads)


def free_bits_of_threads() -> None:
    """Have MKL add in one order for any number of threads ("strict conditional numerical
    reproducibility"). Must be called before the first matrix product of a process.

    Elsewhere than on Intel's processors MKL adds so by itself, and what it would make of the
    request there is not documented.
    """
    if _CPUS.exists() and "GenuineIntel" in _CPUS.read_text(encoding="utf-8"):
        os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")
