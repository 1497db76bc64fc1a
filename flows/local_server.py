"""A Prefect server for a flow that a person starts in a terminal: the one that PREFECT_API_URL
names, or a temporary one that dies with the flow.

Prefect would start one, too, that asks nobody who they are and outlives a killed flow;
`flows/__init__.py` tells it not to.
"""

import atexit
import contextlib
import os
import subprocess
from collections.abc import Callable
from typing import Any

from prefect.context import refresh_global_settings_context
from prefect.settings import PREFECT_API_URL, PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS, get_current_settings

from flows.server import AUTH, client_environment, listen, new_secret, start_server, wait_for_server

_END_PATIENCE_S = 5.0


def with_server(flow: Callable[[], Any], *, meanwhile: Callable[[], object] = lambda: None) -> None:
    """Run `flow` with a server to report to; `meanwhile` is called while that starts. In the main
    thread, with which a server of its own dies.

    Raises Interrupted where the server does not start.
    """
    if PREFECT_API_URL.value():
        meanwhile()
        flow()
        return
    listening, secret = listen(0), new_secret()
    port = listening.getsockname()[1]
    # A profile's settings, a database for example, are the server's too; it has no pages that a log
    # could point to.
    environment = {**os.environ, **get_current_settings().to_environment_variables(exclude_unset=True)}
    server = start_server(listening, secret, environment, is_temporary=True)
    atexit.register(_end, server)  # after Prefect's own, which hand in the last events
    print(f"a temporary server at http://127.0.0.1:{port}, for this run alone", flush=True)
    _report_to({**client_environment(port, secret), "PREFECT_UI_URL": ""})
    meanwhile()
    wait_for_server(server, port, patience_s=float(PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS.value()))
    flow()


def keep_secret_from_jobs() -> None:
    """A flow's jobs get its environment. Prefect has read its secrets when it was imported, and
    asks for them no more."""
    for name in (AUTH, "PREFECT_API_KEY"):
        os.environ.pop(name, None)


def _report_to(named: dict[str, str]) -> None:
    """Point Prefect to the server, without leaving it in the environment: processes that a flow
    starts must not report to its server."""
    before = {name: os.environ.get(name) for name in named}
    os.environ.update(named)
    refresh_global_settings_context()
    for name, value in before.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value


def _end(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        server.wait(_END_PATIENCE_S)
        return
    server.kill()
    server.wait()
