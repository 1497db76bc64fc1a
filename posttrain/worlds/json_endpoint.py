"""A client of a JSON server behind a world (an environment, a model that plays the user): bounded
answers, and retries only where the first request has done nothing.

A request that was never sent, or was turned away unread (429, 503), may always be sent again; one
that may have been carried out only where it changes nothing to do so twice.
"""

import asyncio
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
    that is an error, None where there was none."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


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
        return await self._ask("POST", path, json_body=body, is_repeatable=is_repeatable)

    async def get(self, path: str, query: Mapping[str, str | int]) -> JsonValue:
        """Raises EndpointFailed."""
        return await self._ask("GET", path, query=query, is_repeatable=True)

    async def close(self) -> None:
        """Ends the requests that are still waited for; no idle connection is kept."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _ask(
        self,
        method: str,
        path: str,
        *,
        is_repeatable: bool,
        json_body: Mapping[str, Any] | None = None,
        query: Mapping[str, str | int] | None = None,
    ) -> JsonValue:
        for num_try in range(1, self._tries + 1):
            try:
                return await self._once(method, path, json_body, query)
            except aiohttp.ClientConnectorError as error:
                failed = self._failed(path, error)
            except EndpointFailed as error:
                failed = error
                if error.status not in _TURNED_AWAY and not (is_repeatable and (error.status or 500) >= 500):
                    break
            except (aiohttp.ClientError, TimeoutError) as error:
                failed = self._failed(path, error)
                if not is_repeatable:
                    break
            if num_try < self._tries:
                await asyncio.sleep(_FIRST_WAIT_S * 2 ** (num_try - 1))
        raise failed

    async def _once(
        self, method: str, path: str, body: Mapping[str, Any] | None, query: Mapping[str, str | int] | None
    ) -> JsonValue:
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True, limit=0))
        where = redact(self._url + path)
        async with self._session.request(
            method,
            self._url + path,
            json=body,
            params=query,
            timeout=self._timeout,
            headers=self._headers,
            allow_redirects=False,
        ) as response:
            read = await read_body(response, lambda why: EndpointFailed(f"{where}: {why}", response.status))
            if response.status >= 300:
                said = redirection(response.headers) + reason(read.decode(errors="replace"))
                raise EndpointFailed(f"{where} answers {response.status}: {said}", response.status)
        try:
            answer: JsonValue = json.loads(read)
        except (ValueError, RecursionError):
            said = reason(read[: 4 * MAX_REASON_CHARS].decode(errors="replace"))
            raise EndpointFailed(f"{where} answers what is no JSON in UTF-8: {said!r}", response.status) from None
        return answer

    def _failed(self, path: str, error: Exception) -> EndpointFailed:
        late = f"no whole answer within {self._timeout.total:g} s" * isinstance(error, TimeoutError)
        return EndpointFailed(
            f"{redact(self._url + path)}: {late or f'{type(error).__name__} {reason(error)}'}".rstrip()
        )
