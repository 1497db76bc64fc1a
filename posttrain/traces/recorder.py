"""HTTP proxy on loopback that records what a program asks an OpenAI-compatible endpoint.

Bytes go through as they come. The last of an answer is sent when the exchange is in the store, so
that a kill loses no exchange that was answered: in a stream that is the event after which clients
stop reading. A store that cannot be written breaks no program. Server and client are aiohttp's,
whose parsers are in C.
"""

import asyncio
import contextlib
import hmac
import os
import re
import secrets
import signal
import sys
import time
import zlib
from collections.abc import AsyncIterator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from posttrain.runtime.exits import ConfigurationError
from posttrain.runtime.limits import MAX_ANSWER_BYTES, clip, reason
from posttrain.runtime.loopback import LOOPBACK, stranger
from posttrain.runtime.redaction import redact
from posttrain.runtime.sqlite import transaction
from posttrain.traces.exchanges import TABLE, Exchange, pack
from posttrain.traces.store import VARIABLE, max_store_bytes, open_to_write, trace_location, typed_errors
from posttrain.traces.writer import make_room

_LAST = re.compile(  # where a client may take a stream for complete
    rb'^data: ?\[DONE\]|"finish_reason": ?"|"type": ?"(?:response\.(?:completed|failed|incomplete)|error)"',
    re.MULTILINE,
)
_HOP = re.compile("connection|keep-alive|proxy-.*|te|trailer|transfer-encoding|upgrade|host|expect", re.IGNORECASE)
_READABLE = ("gzip", "x-gzip", "deflate", "identity")  # encodings that are undone in the record
_MARGIN = 2**16  # cut off the end of a body over the limit: half of a key may stand there
_BUSY_MS = 2000  # an answer waits so long for another process's transaction


class ExchangeWriter:
    """Commits exchanges from a thread of its own."""

    def __init__(self, path: Path, *, max_bytes: int) -> None:
        """Raises as `open_to_write`."""
        self._path, self._max_bytes = path, max_bytes
        self._connection = open_to_write(path)
        with typed_errors(path):
            self._connection.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
            self._connection.executescript(TABLE)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="exchanges")

    def put(self, exchange: Exchange) -> "asyncio.Future[None]":
        """Done when the exchange is committed, or cannot be. Whoever waits may be cancelled, and it
        is committed all the same."""
        done = asyncio.wrap_future(self._thread.submit(self._write, exchange))
        self._thread.submit(self._make_room)  # behind it: no answer waits for what is deleted
        return asyncio.shield(done)

    def close(self) -> None:
        """Returns when everything is written."""
        self._thread.shutdown()
        self._connection.close()

    def _write(self, exchange: Exchange) -> None:
        with _told("an exchange is not recorded, requests go on"):
            with typed_errors(self._path), transaction(self._connection):
                row = pack(self._connection, exchange)
                statement = f"INSERT OR REPLACE INTO exchanges VALUES (?{', ?' * (len(row) - 1)})"
                row_id = self._connection.execute(statement, row).lastrowid
            exchange.exchange_id = row_id

    def _make_room(self) -> None:
        with _told("nothing can be deleted"), typed_errors(self._path):
            make_room(self._connection, max_bytes=self._max_bytes)


class Recorder:
    """Forwards what is asked of `/v1` to `upstream`, and has `writer` record what is posted.
    `api_key` is sent in the place of `key`, which is drawn here: a port of the loopback interface
    is open to every user of the machine."""

    def __init__(self, upstream: str, writer: ExchangeWriter, api_key: str) -> None:
        address = URL(upstream)
        if address.scheme not in ("http", "https") or not address.host or address.user is not None:
            raise ConfigurationError(f"--upstream {clip(upstream, 200)} is no address such as https://host/v1")
        self._upstream = str(address / "v1" if address.path in ("", "/") else address).rstrip("/")
        self._writer, self._api_key, self.key = writer, api_key, secrets.token_urlsafe(24)

    @contextlib.asynccontextmanager
    async def serve(self, port: int) -> AsyncIterator[str]:
        """The base URL for programs, good until the block ends; 0 is any free port. Raises
        ConfigurationError where the port cannot be had."""
        app = web.Application(client_max_size=0)
        app.router.add_route("*", "/{path:.*}", self._handle)
        app.on_response_prepare.append(_without_defaults)
        # A program that hangs up cancels its handler, and with it the request upstream.
        options: dict[str, Any] = {"handler_cancellation": True, "auto_decompress": False, "access_log": None}
        runner = web.AppRunner(app, shutdown_timeout=1.0, **options)
        await runner.setup()
        self._client = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=30),
            auto_decompress=False,
            skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
        )
        async with self._client:
            try:
                await web.TCPSite(runner, LOOPBACK, port).start()
            except (OSError, OverflowError) as error:
                raise ConfigurationError(f"port {port} of {LOOPBACK} cannot be had ({error}): name another") from error
            else:
                self._port = runner.addresses[0][1]
                yield f"http://{LOOPBACK}:{self._port}/v1"
            finally:
                await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if stranger(request.headers, self._port):
            return _error(403, "this server answers programs of this machine, and no other site's pages")
        if not request.raw_path.startswith("/v1/"):
            return _error(404, f"{request.raw_path[:200]} is not forwarded; the base URL ends in /v1")
        flight = _Flight(request, await request.read(), self._writer if request.method == "POST" else None)
        try:
            return await self._forward(request, flight)
        except _UpstreamFailed as error:
            await flight.commit(str(error))
            if flight.response is None:
                return _error(502, f"posttrain record: {error}")
            if request.transport:  # the program, too, sees an answer that breaks off
                request.transport.close()
            return flight.response
        except (asyncio.CancelledError, ConnectionResetError) as error:
            if not flight.is_over:
                flight.put("the program went away, or the recorder was ended, before the answer was whole")
            if flight.response is None or isinstance(error, asyncio.CancelledError):
                raise
            return flight.response

    async def _forward(self, request: web.Request, flight: "_Flight") -> web.StreamResponse:
        """Raises _UpstreamFailed."""
        url = URL(self._upstream + request.raw_path.removeprefix("/v1"), encoded=True)
        headers = CIMultiDict(_end_to_end(request.headers))
        headers.popall("Content-Length", None)  # that of the body, whichever way it came
        if "Accept-Encoding" in headers:
            asked = headers["Accept-Encoding"].split(",")
            headers["Accept-Encoding"] = ",".join(one for one in asked if one.split(";")[0].strip() in _READABLE)
        if hmac.compare_digest(headers.get("Authorization", "").encode(), f"Bearer {self.key}".encode()):
            headers["Authorization"] = f"Bearer {self._api_key}"
        body = await request.read()
        try:
            asking = self._client.request(
                request.method, url, headers=headers, data=body or None, allow_redirects=False
            )
            answer = await asking
        except (aiohttp.ClientError, OSError) as error:
            raise _UpstreamFailed(f"{url.origin()} does not answer: {reason(error)}") from error
        async with answer:
            flight.begin(answer)
            request["sent"] = answer.headers
            response = web.StreamResponse(
                status=answer.status, reason=answer.reason, headers=_end_to_end(answer.headers)
            )
            flight.response = response
            await response.prepare(request)
            async for piece in _pieces(answer):
                if flight.add(piece):
                    await flight.commit()
                await response.write(piece)
            flight.is_over = True
            await flight.commit()
            await response.write_eof()
        return response


async def serve_until_stopped(upstream: str, port: int) -> None:
    """Returns after SIGINT or SIGTERM. Raises ConfigurationError, and as `open_to_write`."""
    if (location := trace_location()) is None:
        raise ConfigurationError(f"{VARIABLE} is off, so there is no store to record in; unset it, or set it to a path")
    writer, stopped = ExchangeWriter(location.path, max_bytes=max_store_bytes()), asyncio.Event()
    try:
        recorder = Recorder(upstream, writer, os.environ.get("OPENAI_API_KEY", ""))
        async with recorder.serve(port) as url:
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number, stopped.set)
            print(f"export OPENAI_BASE_URL={url} OPENAI_API_KEY={recorder.key}", flush=True)
            print(f"# recorded in {location.path}; Ctrl-C ends it", flush=True)
            await stopped.wait()
    finally:
        writer.close()


class _UpstreamFailed(Exception):
    """The upstream did not answer, or not to the end."""


class _Kept:
    """Collects a body for the record: uncompressed, and as far as the limit."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        encoding = headers.get("Content-Encoding", "identity").lower()
        # 47: zlib finds out whether it is gzip or deflate
        self._unzip = None if encoding == "identity" else zlib.decompressobj(47)
        self.content, self.num_bytes, self._is_cut = bytearray(), 0, False
        if encoding not in _READABLE:
            self._cut(0, f"compressed by {encoding[:20]}, so that keys in it cannot be found")

    def add(self, piece: bytes) -> None:
        self.num_bytes += len(piece)
        if self._is_cut:
            return
        most = MAX_ANSWER_BYTES + 1 - len(self.content)
        try:
            self.content += self._unzip.decompress(piece, most) if self._unzip else piece[:most]
        except zlib.error as error:
            self._cut(0, str(error))
        if len(self.content) > MAX_ANSWER_BYTES:
            self._cut(_MARGIN, "longer than the limit")

    def _cut(self, num_bytes: int, why: str) -> None:
        self._is_cut = True
        self.content = self.content[: len(self.content) - num_bytes] + f"… [the rest is cut: {why}]".encode()


class _Flight:
    """An exchange under way; without a writer it is not recorded. `is_over`: its client may stop
    reading."""

    def __init__(self, request: web.Request, body: bytes, writer: ExchangeWriter | None) -> None:
        self._writer, self._start, kept = writer, time.perf_counter(), _Kept(request.headers)
        kept.add(body)
        self._exchange = Exchange(path=request.raw_path, request=bytes(kept.content))
        self._exchange.headers["request"] = list(request.headers.items())
        self._answer, self._num_left, self._committed = _Kept({}), -1, (-1, "")
        self.response: web.StreamResponse | None = None
        self.is_over = False

    def begin(self, answer: aiohttp.ClientResponse) -> None:
        self._answer, self._num_left = _Kept(answer.headers), int(answer.headers.get("Content-Length", -1))
        self._exchange.status, self._exchange.headers["response"] = answer.status, list(answer.headers.items())

    def add(self, piece: bytes) -> bool:
        """Whether a client may stop reading behind this piece."""
        if self._exchange.first_byte_s is None:
            self._exchange.first_byte_s = time.perf_counter() - self._start
        looked_at = max(0, len(self._answer.content) - 64)  # an event may come in pieces
        self._answer.add(piece)
        is_last = self._answer.num_bytes == self._num_left or _LAST.search(self._answer.content, looked_at)
        self.is_over = self.is_over or bool(is_last)
        return self.is_over

    async def commit(self, failure: str = "") -> None:
        """Returns when all that has come is in the store, or cannot be."""
        if self._committed != (now := (self._answer.num_bytes, failure)):
            self._committed = now
            if (done := self.put(failure)) is not None:
                await done

    def put(self, failure: str) -> "asyncio.Future[None] | None":
        exchange = self._exchange
        exchange.response, exchange.failure = bytes(self._answer.content), failure
        exchange.latency_s = time.perf_counter() - self._start
        return self._writer.put(exchange) if self._writer else None


async def _pieces(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """As they come. Raises _UpstreamFailed."""
    try:
        async for piece in answer.content.iter_any():
            yield piece
    except (aiohttp.ClientError, OSError) as error:
        raise _UpstreamFailed(f"the upstream broke off: {reason(error)}") from error


def _end_to_end(headers: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(name, value) for name, value in headers.items() if not _HOP.fullmatch(name)]


async def _without_defaults(request: web.Request, response: web.StreamResponse) -> None:
    """Take back what aiohttp adds and the upstream has not sent."""
    for name in ("Content-Type", "Server") if "sent" in request else ():
        if name not in request["sent"]:
            response.headers.popall(name, None)


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "type": "recorder_error", "code": None}}, status=status)


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    """Say on stderr that something failed, and go on: recording may fail, the program may not."""
    try:
        yield
    except Exception as error:
        print(f"[record] {what}: {redact(str(error))}", file=sys.stderr, flush=True)
