"""Reads the answer of a server up to a limit, so that no server can fill the memory; for each of
the HTTP clients in use.

Bytes are counted as they come, so an answer must come uncompressed: a few kilobytes of gzip can be
gigabytes of text. Who asks says so (`IDENTITY`), and an answer that is compressed all the same is
refused. The answer to an error is read as far as its limit and no further; any other that passes
its limit is an error.
"""

from collections.abc import AsyncIterator, Callable
from typing import Any

from posttrain.limits import MAX_ANSWER_BYTES, MAX_ERROR_BYTES

IDENTITY = {"Accept-Encoding": "identity"}


async def read_body(response: Any, refuse: Callable[[str], Exception]) -> bytes:
    """The body of an aiohttp response. Raises what `refuse(reason)` makes."""
    pieces = [
        piece
        async for piece in _bounded(response.content.iter_chunked(2**16), response.status, response.headers, refuse)
    ]
    return b"".join(pieces)


def bound_httpx(client: Any, refuse: Callable[[str], Exception]) -> None:
    """Have an `httpx2.AsyncClient` read answers as far as the limits; beyond it raises what
    `refuse(reason)` makes. Not those to GET: that is an MCP server's stream of notifications, which
    never ends, and of one event of it the client has a limit of its own."""
    from httpx2 import AsyncByteStream

    class Bounded(AsyncByteStream):
        def __init__(self, response: Any) -> None:
            self._stream, self._status, self._headers = response.stream, response.status_code, response.headers

        async def __aiter__(self) -> AsyncIterator[bytes]:
            async for piece in _bounded(self._stream, self._status, self._headers, refuse):
                yield piece

        async def aclose(self) -> None:
            await self._stream.aclose()

    async def bound(response: Any) -> None:
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
