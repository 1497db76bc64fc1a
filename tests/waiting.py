"""Waiting for what comes about in its own time."""

import time
from collections.abc import Callable
from typing import Any


def wait_until(is_so: Callable[[], Any], *, limit_s: float = 60.0, what: str = "it") -> Any:
    """Value of `is_so` once it is true. The limit is how long to wait, never how fast it is to
    be."""
    deadline = time.monotonic() + limit_s
    while not (found := is_so()):
        assert time.monotonic() < deadline, f"{what} has not come about in {limit_s} s"
        time.sleep(0.02)
    return found
