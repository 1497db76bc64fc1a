"""Serves a `LoopbackServer` from a thread while a test asks it."""

import contextlib
import threading


@contextlib.contextmanager
def serving(server):
    """The server; it has ended when the block has."""
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.should_exit = True
        thread.join(30)
