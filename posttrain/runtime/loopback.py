"""A web server on a loopback port, for the user who started it.

A port of the loopback interface is open to every user of the machine, and to every page in a
browser. So a request has to name this host and, where a page sends it, come from a page of this
port; and what it is for asks for the key, which is drawn for each run and printed once.
"""

import hmac
import secrets
import socket
from collections.abc import Mapping, Sequence
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from posttrain.runtime.exits import ConfigurationError

LOOPBACK = "127.0.0.1"
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def stranger(headers: Mapping[str, str], port: int) -> str:
    """Why a request is of no program or page of this port; empty where it is. A site whose name was
    made to lead to this machine is another host."""
    hosts = [f"{host}:{port}" for host in (LOOPBACK, "localhost")]
    if headers.get("Host") not in hosts:
        return "another host"
    is_own = headers.get("Origin") in (None, *(f"http://{host}" for host in hosts))
    return "" if is_own else "a page of another origin"


class LoopbackServer(uvicorn.Server):
    """Answers by `routes`, whose handlers look at the key. Port 0 is any that is free; raises
    ConfigurationError where it is taken."""

    def __init__(self, routes: Sequence[Route], port: int) -> None:
        self.key, self._app = secrets.token_urlsafe(32), Starlette(routes=routes)
        settings: dict[str, Any] = {"log_config": None, "access_log": False, "lifespan": "off", "ws": "none"}
        super().__init__(uvicorn.Config(self._answer, interface="asgi3", timeout_graceful_shutdown=1, **settings))
        try:
            self._socket = socket.create_server((LOOPBACK, port))
        except (OSError, OverflowError) as error:
            raise ConfigurationError(f"port {port} of {LOOPBACK} cannot be had: {error}") from error
        self.port: int = self._socket.getsockname()[1]

    def serve_forever(self) -> None:
        """Returns after Ctrl-C."""
        self.run(sockets=[self._socket])

    def is_key(self, given: str) -> bool:
        # compare_digest takes the same time for any wrong key.
        return hmac.compare_digest(given.encode(errors="replace"), self.key.encode())

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        why = stranger(HTTPConnection(scope).headers, self.port)
        await (own_response(why, 403) if why else self._app)(scope, receive, send)


def own_response(content: str, status: int = 200, kind: str = "text/plain", **headers: str) -> Response:
    """An answer that no cache keeps and no page of another origin reads."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(content.encode(errors="replace"), status, {**_HEADERS, **named}, kind)
