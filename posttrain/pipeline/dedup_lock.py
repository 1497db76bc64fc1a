"""One run of the machine at a time computes the same: what it brings lies in the run cache when the
next one's turn comes.

Experiments beside each other share most of their stages, and each would start them. A lock for each
key, which the kernel frees with its holder.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from posttrain.runtime.exits import Interrupted
from posttrain.runtime.locks import held_if_free
from posttrain.runtime.state import private_folder

_LOOK_S = 0.5


@contextlib.contextmanager
def hold_key(folder: Path, key: str, tell: Callable[[str], None], *, is_stopped: Callable[[], bool]) -> Iterator[bool]:
    """Hold what `key` names against threads and processes that share `folder`; yields whether
    another had it before. Raises Interrupted once `is_stopped`."""
    path, has_waited = private_folder(folder) / key, False
    while True:
        with held_if_free(path) as is_ours:
            if is_ours:
                yield has_waited
                return
        if is_stopped():
            raise Interrupted("it waited for another run that computes the same, and was stopped. Run it again")
        if not has_waited:
            tell("another run of this machine computes the same; waiting for what it brings")
        has_waited = True
        time.sleep(_LOOK_S)
