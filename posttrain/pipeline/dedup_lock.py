"""Lock for each cache key: one run of this machine computes a result, and the next finds it in the
run cache. Experiments beside each other share most of their stages, and each would start them."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from posttrain.runtime.exits import Interrupted
from posttrain.runtime.locks import held_if_free
from posttrain.runtime.state import private_folder

_POLL_S = 0.5


@contextlib.contextmanager
def lock_key(folder: Path, key: str, log: Callable[[str], None], *, is_stopped: Callable[[], bool]) -> Iterator[bool]:
    """Lock `key` against threads and processes that share `folder`; yields whether another had it
    before. Raises Interrupted once `is_stopped`."""
    path, has_waited = private_folder(folder) / key, False
    while True:
        with held_if_free(path) as is_ours:
            if is_ours:
                yield has_waited
                return
        if is_stopped():
            raise Interrupted("it waited for another run that computes the same, and was stopped. Run it again")
        if not has_waited:
            log("another run of this machine computes the same; waiting for its result")
        has_waited = True
        time.sleep(_POLL_S)
