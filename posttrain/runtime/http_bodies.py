"""Bounded reading of HTTP responses, for aiohttp and httpx2: a size limit, and no redirection to
another host.

Bytes are counted as they come, so an answer must come uncompressed: a few kilobytes of gzip can be
gigabytes of text. Who asks says so (`IDENTITY`), and an answer that is compressed all the same is
refused. The answer to an error is read as far as its limit and no further; any other that passes
its limit is an error.
"""

from collections.abc import AsyncIterator, Callable
from typing import Any

from posttrain.runtime.limits import MAX_ANSWER_BYTES, MAX_ERROR_BYTES, clip

IDENTITY = {"Accept-Encoding": "identity"}


async def read_body(response: Any, refuse: Callable[[str], Exception]) -> bytes:
    """The body of an aiohttp response. Raises what `refuse(reason)` makes."""
    pieces = [
        piece
        async for piece in _bounded(response.content.iter_chunked(2**16), response.status, response.headers, refuse)
    ]
    return b"".join(pieces)


def redirection(headers: Any) -> str:
    """A sentence on the target of a redirection that is not followed; empty where there is none."""
    if not (to := headers.get("location", "")):
        return ""
    return f"it redirects to {clip(to, 200)}, where nothing is sent: if that is the right address, name it. "


def bound_httpx(
    client: Any, refuse: Callable[[str], Exception], *, refuse_redirect: Callable[[str], Exception] | None = None
) -> None:
    """Have an `httpx2.AsyncClient` read answers as far as the limits; beyond it raises what
    `refuse(reason)` makes. Not those to GET: that is an MCP server's stream of notifications, which
    never ends, and of one event of it the client has a limit of its own.

    A redirection is followed where the same request goes to the same scheme, host and port; any
    other raises what `refuse_redirect(reason)` makes: it would take key and conversation along.
    """
    from httpx2 import AsyncByteStream, InvalidURL

    class Bounded(AsyncByteStream):
        def __init__(self, response: Any) -> None:
            self._stream, self._status, self._headers = response.stream, response.status_code, response.headers

        async def __aiter__(self) -> AsyncIterator[bytes]:
            async for piece in _bounded(self._stream, self._status, self._headers, refuse):
                yield piece

        async def aclose(self) -> None:
            await self._stream.aclose()

    def is_same_place(response: Any) -> bool:
        asked = response.request.url
        try:
            target = asked.join(response.headers["location"])
        except (InvalidURL, ValueError):
            return False
        is_same_request = response.status_code in (307, 308) or response.request.method == "GET"
        return is_same_request and (target.scheme, target.host, target.port) == (asked.scheme, asked.host, asked.port)

    async def bound(response: Any) -> None:
        if response.has_redirect_location and not is_same_place(response):
            raise (refuse_redirect or refuse)(redirection(response.headers).strip())
        if response.request.method != "GET":
            response.stream = Bounded(response)

    client.headers.update(IDENTITY)
    client.event_hooks = {**client.event_hooks, "response": [*client.event_hooks["response"], bound]}


async def _bounded(pieces: Any, status: int, headers: Any, refuse: Callable[[str], Exception]) -> AsyncIterator[bytes]:
    if (encoding := headers.get("content-encoding", "identity")) != "identity":
        if status >= 400:
            return
        raise refuse(
            f"the answer is compressed ({encoding[:20]!r}) though it was asked for as it is; "
            "its size cannot be known before it is read"
        )
    limit, size = MAX_ANSWER_BYTES if status < 400 else MAX_ERROR_BYTES, 0
    async for piece in pieces:
        yield piece[: limit - size]
        size += len(piece)
        if size <= limit:
            continue
        if status >= 400:
            return
        raise refuse(f"the answer has more than {limit / 2**20:.0f} MiB; it was read no further")
