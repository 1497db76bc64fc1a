"""Serves a page of commands on a loopback port, for the user who started it.

A POST has to bring the key, which stands in the address's fragment, and browsers send that nowhere.
GET gives the page, which holds no data, and changes nothing.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from pydantic import ValidationError, validate_call
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from posttrain.runtime.exits import StageError
from posttrain.runtime.loopback import LOOPBACK, LoopbackServer, own_response

_MAX_BODY_BYTES = 4 * 2**20


class Commands(Protocol):
    """The commands of a page, each a method that may change something."""

    def run(self, name: str, given: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        """The status of an answer, and the answer."""


class DebugServer(LoopbackServer):
    """Serves `page`, whose HTML is `html`. `address` has the key, which is all that a browser
    needs."""

    def __init__(self, page: Commands, html: str, port: int = 0) -> None:
        self.page, self._html = page, html
        routes = [Route("/", self._get, methods=["GET"]), Route("/{command}", self._post, methods=["POST"])]
        super().__init__(routes, port)
        self.address = f"http://{LOOPBACK}:{self.port}/#{self.key}"

    async def _get(self, _: Request) -> Response:
        return own_response(self._html, kind="text/html")

    async def _post(self, request: Request) -> Response:
        scheme, _, given_key = request.headers.get("authorization", "").partition(" ")
        if scheme != "Bearer" or not self.is_key(given_key):
            return _json(403, {"error": "the key is in the address that the command printed"})
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


def run_command(command: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """What a command gives: a sentence in `said`, or its figures; or in `error` what is wrong."""
    try:
        told = validate_call(command)(**given)
    except ValidationError as error:
        first = error.errors()[0]
        return {"error": f"{'.'.join(map(str, first['loc']))}: {first['msg']}"}
    except (StageError, ValueError) as error:
        return {"error": str(error)}
    return told if isinstance(told, dict) else {"said": told or ""}


def _json(status: int, answer: dict[str, Any]) -> Response:
    """ASCII alone, because half of a surrogate pair, which a model may write, is no UTF-8."""
    return own_response(json.dumps(answer, allow_nan=False), status, "application/json")
