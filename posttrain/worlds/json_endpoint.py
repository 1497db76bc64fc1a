"""A client of a JSON server behind a world (an environment, a model that plays the user): bounded
answers, and retries only where the first request has done nothing.

A request that was never sent, or was turned away unread (429, 503), may always be sent again; one
that may have been carried out only where it changes nothing to do so twice.
"""

import asyncio
import itertools
import json
from collections.abc import Mapping
from typing import Any

import aiohttp

from posttrain.runtime.http_bodies import IDENTITY, read_body, redirection
from posttrain.runtime.limits import MAX_REASON_CHARS, reason
from posttrain.runtime.redaction import redact
from posttrain.types import JsonValue

_TURNED_AWAY = (429, 503)
_FIRST_WAIT_S = 0.25  # twice as long each time
_CONNECT_S = 10.0


class EndpointFailed(Exception):
    """The server did not answer, broke off, or answered what is no JSON. `status` is of an answer
    that is an error, None where there was none; `is_unsent`: no connection could be made."""

    def __init__(self, message: str, status: int | None = None, *, is_unsent: bool = False) -> None:
        super().__init__(message)
        self.status, self.is_unsent = status, is_unsent


class JsonEndpoint:
    """Connections to the server at `url`; they belong to the event loop that first asks. `tries` of
    a request at most. A connection serves one request: a server closes an idle one when it likes,
    and what was then sent on it may or may not have been read."""

    def __init__(self, url: str, *, timeout_s: float, tries: int, headers: Mapping[str, str] | None = None) -> None:
        self._url, self._tries = url.rstrip("/"), tries
        self._timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=min(timeout_s, _CONNECT_S))
        self._headers = {**IDENTITY, **(headers or {})}
        self._session: aiohttp.ClientSession | None = None

    async def post(self, path: str, body: Mapping[str, Any], *, is_repeatable: bool) -> JsonValue:
        """Raises EndpointFailed."""
        return await self._ask("POST", path, is_repeatable=is_repeatable, json=body)

    async def get(self, path: str, query: Mapping[str, str | int]) -> JsonValue:
        """Raises EndpointFailed."""
        return await self._ask("GET", path, is_repeatable=True, params=query)

    async def close(self) -> None:
        """Ends the requests that are still waited for; no idle connection is kept."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _ask(self, method: str, path: str, *, is_repeatable: bool, **content: Any) -> JsonValue:
        for num_try in itertools.count(1):
            try:
                return await self._once(method, self._url + path, content)
            except EndpointFailed as error:
                is_unread = error.is_unsent or error.status in _TURNED_AWAY
                may_repeat = is_unread or (is_repeatable and (error.status is None or error.status >= 500))
                if not may_repeat or num_try == self._tries:
                    raise
            await asyncio.sleep(_FIRST_WAIT_S * 2 ** (num_try - 1))
        raise AssertionError("it counts without end")

    async def _once(self, method: str, url: str, content: Mapping[str, Any]) -> JsonValue:
        where = redact(url)
        if self._session is None:
            connector = aiohttp.TCPConnector(force_close=True, limit=0)
            self._session = aiohttp.ClientSession(connector=connector, headers=self._headers, timeout=self._timeout)
        try:
            async with self._session.request(method, url, allow_redirects=False, **content) as response:
                read = await read_body(response, lambda why: EndpointFailed(f"{where}: {why}", response.status))
        except TimeoutError:
            raise EndpointFailed(f"{where}: no whole answer within {self._timeout.total:g} s") from None
        except aiohttp.ClientError as error:
            is_unsent = isinstance(error, aiohttp.ClientConnectorError)
            why = f"{type(error).__name__} {reason(error)}".rstrip()
            raise EndpointFailed(f"{where}: {why}", is_unsent=is_unsent) from None
        if response.status >= 300:
            said = redirection(response.headers) + reason(read.decode(errors="replace"))
            raise EndpointFailed(f"{where} answers {response.status}: {said}", response.status)
        try:
            answer: JsonValue = json.loads(read)
        except (ValueError, RecursionError):
            said = reason(read[: 4 * MAX_REASON_CHARS].decode(errors="replace"))
            raise EndpointFailed(f"{where} answers what is no JSON in UTF-8: {said!r}", response.status) from None
        return answer
