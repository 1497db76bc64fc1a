"""File locks (flock): the kernel frees them when the holder dies, so a held lock means a live
holder. A PID would not do: it may be another process's by now.

A file that nobody holds may be taken away by anybody (`held_if_free`), so who locks one looks
whether it is still the one of that name.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from posttrain.runtime.state import private


def take_lock(file: IO[str] | int) -> None:
    """Wait for the lock; the kernel frees it with the last process that has the file open."""
    fcntl.flock(file, fcntl.LOCK_EX)


def take_lock_now(file: IO[str]) -> None:
    """Lock the file at once; raises BlockingIOError where another holds it."""
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_held(path: Path) -> bool:
    """False where there is no such file."""
    try:
        file = path.open(encoding="ascii")
    except FileNotFoundError:
        return False
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def hold(path: Path) -> IO[str]:
    """The lock on `path`, made where it is not there, once nobody else has it; held until the file
    is closed."""
    while True:
        file = open(path, "a", encoding="ascii", opener=private)  # noqa: SIM115 it is held for as long as it is open
        take_lock(file)
        if is_at(path, file):
            return file
        file.close()


@contextlib.contextmanager
def held_if_free(path: Path) -> Iterator[bool]:
    """Hold the lock on `path`, made where it is not there, and take the file away at the end;
    yields False where another holds it."""
    with open(path, "a", encoding="ascii", opener=private) as file:
        try:
            take_lock_now(file)
            is_ours = is_at(path, file)  # else its holder took it away between the two calls
        except BlockingIOError:
            is_ours = False
        try:
            yield is_ours
        finally:
            if is_ours:
                path.unlink(missing_ok=True)


@contextlib.contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Mutual exclusion between processes: one at a time is in such a block of a folder."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        take_lock(descriptor)
        yield
    finally:
        os.close(descriptor)


def is_at(path: Path, file: IO[str]) -> bool:
    """True where the open file is still the one of that name; False where it was removed since."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False
