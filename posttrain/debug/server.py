"""Serves the debugger's page on a loopback port, for the user who started it.

A port of the loopback interface is open to every user of the machine, and to every page in a
browser. So a POST has to name this host, come from this page, and bring the key that is printed
once, in the address's fragment, which browsers send nowhere. GET gives the page, which holds no
data, and changes nothing.
"""

import hmac
import json
import secrets
import socket
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from posttrain.debug.page import DebugPage
from posttrain.runtime.exits import ConfigurationError

LOOPBACK = "127.0.0.1"
_MAX_BODY_BYTES = 4 * 2**20
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class DebugServer(uvicorn.Server):
    """Serves `page`, whose HTML is `html`, by `run`. Port 0 is any that is free; raises
    ConfigurationError where it is taken."""

    def __init__(self, page: DebugPage, html: str, port: int = 0) -> None:
        self.page, self.key, self._html = page, secrets.token_urlsafe(32), html
        routes = [Route("/", self._get, methods=["GET"]), Route("/{command}", self._post, methods=["POST"])]
        settings: dict[str, Any] = {"log_config": None, "access_log": False, "lifespan": "off", "ws": "none"}
        super().__init__(uvicorn.Config(Starlette(routes=routes), timeout_graceful_shutdown=1, **settings))
        try:
            self._socket = socket.create_server((LOOPBACK, port))
        except (OSError, OverflowError) as error:
            raise ConfigurationError(f"port {port} of {LOOPBACK} cannot be had: {error}") from error
        self.port: int = self._socket.getsockname()[1]

    @property
    def address(self) -> str:
        """Address with the key, which is all that a browser needs."""
        return f"http://{LOOPBACK}:{self.port}/#{self.key}"

    def serve_forever(self) -> None:
        """Returns after Ctrl-C."""
        self.run(sockets=[self._socket])

    async def _get(self, request: Request) -> Response:
        return _forbidden(self._stranger(request)) or Response(self._html, media_type="text/html", headers=_HEADERS)

    async def _post(self, request: Request) -> Response:
        if refusal := _forbidden(self._stranger(request) or self._without_key(request)):
            return refusal
        body = bytearray()
        async for piece in request.stream():
            body += piece
            if len(body) > _MAX_BODY_BYTES:
                return _json(413, {"error": f"more than {_MAX_BODY_BYTES // 2**20} MiB were sent"})
        try:
            given = json.loads(body or b"{}")
        except (ValueError, RecursionError):
            given = None
        if not isinstance(given, dict):
            return _json(400, {"error": "a command takes a JSON object"})
        return _json(*await run_in_threadpool(self.page.run, request.path_params["command"], given))

    def _stranger(self, request: Request) -> str:
        """Why the request is not one of our page's; empty where it is."""
        hosts = [f"{host}:{self.port}" for host in (LOOPBACK, "localhost")]
        if request.headers.get("host") not in hosts:
            return "another host"
        origin = request.headers.get("origin")
        return "" if origin is None or origin in [f"http://{host}" for host in hosts] else "a page of another origin"

    def _without_key(self, request: Request) -> str:
        given = request.headers.get("authorization", "")
        # compare_digest takes the same time for any wrong key.
        is_key = hmac.compare_digest(given.encode(), f"Bearer {self.key}".encode())
        return "" if is_key else "the key is in the address that `posttrain debug --ui` printed"


def _forbidden(why: str) -> Response | None:
    return _json(403, {"error": why}) if why else None


def _json(status: int, answer: dict[str, Any]) -> Response:
    """ASCII alone, because half of a surrogate pair, which a model may write, is no UTF-8."""
    return Response(json.dumps(answer, allow_nan=False), status, _HEADERS, "application/json")
