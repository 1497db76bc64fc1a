"""Makes DVC usable from several threads of one process, as experiments beside each other use it.

DVC checks every `dvc.yaml` by schemas of voluptuous that all threads share, and a schema changes
while it checks: two threads at once find errors in a file that has none.
"""

import threading
from typing import Any

import voluptuous

_LOCK = threading.RLock()
_PLAIN = voluptuous.Schema.__call__


def allow_threads() -> None:
    """Let one schema at a time check something in this process, from now on."""
    voluptuous.Schema.__call__ = _one_at_a_time  # type: ignore[method-assign]


def _one_at_a_time(schema: voluptuous.Schema, data: Any) -> Any:
    with _LOCK:
        return _PLAIN(schema, data)  # type: ignore[no-untyped-call]
