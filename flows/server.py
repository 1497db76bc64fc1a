"""A Prefect server for this user alone: a client must send its secret, name a loopback host, and
come from no other site's page.

Whoever may start a run may have a worker run any command. Prefect's server authenticates nobody by
default and lets every page of a browser read its answers, so ours is started by `start_server`
only. The secret is passed in the environment, because all users of a machine can read command
lines. There are no CSRF tokens: a browser sends no credentials by itself (no cookie, no stored
password), and tokens would keep out curl.
"""

import argparse
import http.client
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from starlette.datastructures import Headers
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from flows.die_with_parent import end_with
from posttrain.runtime.exits import ConfigurationError, Interrupted

LOOPBACK = "127.0.0.1"
API_URL, AUTH, SERVER_AUTH = "PREFECT_API_URL", "PREFECT_API_AUTH_STRING", "PREFECT_SERVER_API_AUTH_STRING"
_HOSTS = (LOOPBACK, "localhost")
_TEMPORARY = {"PREFECT__SERVER_EPHEMERAL": "1", "PREFECT_UI_ENABLED": "0", "PREFECT_SERVER_LOGGING_LEVEL": "ERROR"}
_COULD_NOT_START = 3  # uvicorn's own exit code for it


def new_secret() -> str:
    """A new secret of the form `user:password`, which curl and browsers need."""
    return f"posttrain:{secrets.token_urlsafe(32)}"


def listen(port: int) -> socket.socket:
    """A loopback socket that a server is to have; who connects before it runs waits. 0 is any free
    port. Raises ConfigurationError where another has it, who would be asked in place of ours."""
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((LOOPBACK, port))
        listening.listen(2048)
    except (OSError, OverflowError) as error:
        listening.close()
        raise ConfigurationError(
            f"port {port} of {LOOPBACK} cannot be had ({error}): end what has it, "
            "or name another (make serve SERVER_PORT=…)"
        ) from error
    return listening


def client_environment(port: int, secret: str) -> dict[str, str]:
    """Environment variables that point Prefect's clients to the server."""
    return {API_URL: f"http://{LOOPBACK}:{port}/api", AUTH: secret}


def start_server(
    listening: socket.socket,
    secret: str,
    environment: Mapping[str, str],
    *,
    is_temporary: bool,
    output: IO[bytes] | None = None,
) -> subprocess.Popen[bytes]:
    """Takes the socket over, and dies with the thread that calls this. A temporary server has no
    pages and no schedules. What it writes is this user's alone."""
    port = listening.getsockname()[1]
    asks = {SERVER_AUTH: secret, "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": ",".join(own_origins(port))}
    command = [sys.executable, "-m", "flows.server", str(listening.fileno()), str(os.getpid())]
    with listening:
        return subprocess.Popen(
            command,
            env={**environment, **client_environment(port, secret), **asks, **(_TEMPORARY if is_temporary else {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT if output else None,
            # a terminal's Ctrl-C would end it before its clients
            start_new_session=True,
            pass_fds=[listening.fileno()],
            umask=0o077,
        )


def wait_for_server(server: subprocess.Popen[bytes], port: int, *, patience_s: float, log: Path | None = None) -> None:
    """Wait until the server answers. Raises Interrupted where it ends instead, or takes longer than
    `patience_s`; `log` is its log file."""
    where = f"see {log}" if log else "see its output"
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=patience_s)
    try:
        connection.request("GET", "/api/health")
        status = connection.getresponse().status
    except TimeoutError as error:
        raise Interrupted(f"the Prefect server does not answer after {patience_s:g} s; {where}") from error
    except (OSError, http.client.HTTPException) as error:
        code = server.wait(patience_s)
        raise Interrupted(f"the Prefect server ended with {code} while it started; {where}") from error
    finally:
        connection.close()
    if status != http.client.OK:
        raise Interrupted(f"the Prefect server answers {status} to a health check; {where}")


def own_origins(port: int) -> tuple[str, ...]:
    """Origins of the pages that the server on this port serves itself."""
    return tuple(f"http://{host}:{port}" for host in _HOSTS)


class OwnPagesOnly:
    """Refuses, before anything is done, what a page of another origin asks or whose sockets it
    opens. Programs that are no browser name no origin."""

    def __init__(self, app: ASGIApp, origins: tuple[str, ...]) -> None:
        self._app, self._origins = app, origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        origin = Headers(scope=scope).get("origin") if scope["type"] in ("http", "websocket") else None
        if origin is None or origin in self._origins:
            await self._app(scope, receive, send)
        else:
            await PlainTextResponse(f"this server answers its own pages only ({', '.join(self._origins)})", 403)(
                scope, receive, send
            )


def make_app(port: int) -> ASGIApp:
    """Prefect's, behind a look at who asks: Host against a site whose name was made to lead to this
    machine, Origin against its pages.

    They stand around the app and not in it, because the server asks the app itself, under a name of
    its own.
    """
    from prefect.server.api.server import create_app  # three seconds of import that only the server needs

    return TrustedHostMiddleware(OwnPagesOnly(create_app(final=True), own_origins(port)), allowed_hosts=list(_HOSTS))


def main() -> None:
    parser = argparse.ArgumentParser(
        "flows.server", description="Started by `make serve` and by flows, with its secret in the environment."
    )
    parser.add_argument("listening", type=int, help="number of the file that is the socket")
    parser.add_argument("parent", type=int, help="process to die with")
    given = parser.parse_args()
    end_with(given.parent, signal.SIGKILL)
    if not os.environ.get(SERVER_AUTH):
        sys.exit(
            f"{SERVER_AUTH} is not set: without a secret everybody on this machine could run commands as you. "
            "`make serve` starts a server with one"
        )
    _run(socket.socket(fileno=given.listening))


def _run(listening: socket.socket) -> None:
    import uvicorn
    from prefect.settings import get_current_settings

    settings = get_current_settings().server
    config = uvicorn.Config(
        make_app(listening.getsockname()[1]),
        lifespan="on",
        log_level=settings.logging_level.lower(),
        timeout_keep_alive=settings.api.keepalive_timeout,
        ws_ping_interval=settings.api.websocket_ping_interval,
        ws_ping_timeout=settings.api.websocket_ping_timeout,
    )
    server = uvicorn.Server(config)
    server.run(sockets=[listening])
    if not server.started:
        sys.exit(_COULD_NOT_START)


if __name__ == "__main__":
    main()
