"""Bounded stdio transport of an MCP server, in place of the SDK's `stdio_client`.

The SDK's reads a line however long it is, in time that grows with its square (50 MB hold the event
loop, and with it all episodes, for a minute), and needs a file for the server's stderr. Here a line
has a limit: an answer that passes it, or cannot be read, becomes an error of its request, the rest
of it is thrown away and the server goes on. The end of stderr is kept. The process is ended by the
SDK's own functions.
"""

import contextlib
import re
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence

import anyio
from anyio.abc import ByteReceiveStream, ObjectReceiveStream, ObjectSendStream, Process
from mcp.client._transport import TransportStreams
from mcp.client.stdio import _close_pipe, _stop_server_process, get_default_environment
from mcp.shared.message import SessionMessage
from mcp.types import ErrorData, JSONRPCError, jsonrpc_message_adapter

from posttrain.runtime.limits import MAX_ANSWER_BYTES, reason
from posttrain.runtime.redaction import redact

UNREADABLE = -32099  # error code of an answer too long or broken, in the range that JSON-RPC leaves to its users
_MAX_UNSOLICITED = 10_000  # messages in a row that answer nothing: each costs time, a server's request even a task
_MAX_OBJECTS = 1_000_000  # in an answer: each takes 400 bytes while it is read, however few it has
_KEPT_BYTES = 2**16
_SHOWN_CHARS = 500
_ID = re.compile(rb'"id"\s*:\s*(?:(\d{1,18})|"([^"\\]{1,200})")')


class ServerLog:
    """The end of a server's output that was no answer. `refused` says why an answer was not read,
    until a call has raised it as its error."""

    def __init__(self) -> None:
        self._kept, self.refused = b"", ""

    def add(self, output: bytes) -> None:
        self._kept = (self._kept + output)[-_KEPT_BYTES:]

    def text(self) -> str:
        """Without keys; may be empty."""
        return redact(self._kept.decode(errors="replace")).strip()[-_SHOWN_CHARS:]


@contextlib.asynccontextmanager
async def stdio_transport(
    command: Sequence[str], env: Mapping[str, str], log: ServerLog
) -> AsyncIterator[TransportStreams]:
    """The process runs as long as the block. Raises OSError where it cannot be started."""
    process = await anyio.open_process(
        list(command), env={**get_default_environment(), **env}, stderr=subprocess.PIPE, start_new_session=True
    )
    to_client, read_stream = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write_stream, from_client = anyio.create_memory_object_stream[SessionMessage](0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_read_answers, process, to_client, log)
        tasks.start_soon(_write_requests, process, from_client)
        tasks.start_soon(_keep_stderr, process, log)
        try:
            yield read_stream, write_stream
        finally:
            with anyio.CancelScope(shield=True):
                await _stop_server_process(process)
                if process.stderr is not None:
                    await _close_pipe(process.stderr)
                for stream in (read_stream, write_stream, to_client, from_client):
                    await stream.aclose()
            tasks.cancel_scope.cancel()


async def _read_answers(
    process: Process, to_client: ObjectSendStream[SessionMessage | Exception], log: ServerLog
) -> None:
    """Passes answers on. The stream ends with the server's stdout, or with a flood of messages that
    answer nothing."""
    assert process.stdout is not None
    num_unsolicited = 0
    async with to_client:
        with contextlib.suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
            async for line in _lines(process.stdout):
                message = _message(line, log)
                is_answer = message is not None and not hasattr(message.message, "method")
                num_unsolicited = 0 if is_answer else num_unsolicited + 1
                if num_unsolicited > _MAX_UNSOLICITED:
                    log.add(b"\n(%d messages and no answer: nothing more is read)" % num_unsolicited)
                    break
                if message is not None:
                    await to_client.send(message)
    with contextlib.suppress(anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
        while True:  # nobody reads any more; a full pipe would keep the server from ending
            await process.stdout.receive()


async def _lines(stdout: ByteReceiveStream) -> AsyncIterator[bytes]:
    """Whole lines; of one that passes the limit only its beginning, as soon as it does."""
    parts: list[bytes] = []
    size = 0
    async for chunk in stdout:
        for place, piece in enumerate(chunk.split(b"\n")):
            if place:
                if size <= MAX_ANSWER_BYTES:
                    yield b"".join(parts)
                parts, size = [], 0
            if size <= MAX_ANSWER_BYTES:
                parts.append(piece)
                size += len(piece)
                if size > MAX_ANSWER_BYTES:
                    yield b"".join(parts)
                    parts = []


def _message(line: bytes, log: ServerLog) -> SessionMessage | None:
    why = f"the answer has more than {MAX_ANSWER_BYTES // 2**20} MiB; it was read no further"
    if line.count(b"{") + line.count(b"[") > _MAX_OBJECTS:
        why = f"the answer has more than {_MAX_OBJECTS:,} objects and lists; it was not read"
    elif len(line) <= MAX_ANSWER_BYTES:
        try:
            return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
        except ValueError as error:
            why = f"the answer cannot be read: {reason(error)}"
    asked = (_ID.search(line[:1000]) or _ID.search(line[-1000:])) if line.startswith(b"{") else None
    if asked is None:
        log.add(line[:_SHOWN_CHARS] + b"\n" if len(line) <= MAX_ANSWER_BYTES else f"({why})\n".encode())
        return None
    number = int(asked[1]) if asked[1] else asked[2].decode(errors="replace")
    return SessionMessage(JSONRPCError(jsonrpc="2.0", id=number, error=ErrorData(code=UNREADABLE, message=why)))


async def _write_requests(process: Process, from_client: ObjectReceiveStream[SessionMessage]) -> None:
    assert process.stdin is not None
    # the reader meets the end of the connection, too
    with contextlib.suppress(anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
        async with from_client:
            async for message in from_client:
                line = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                await process.stdin.send(line.encode() + b"\n")


async def _keep_stderr(process: Process, log: ServerLog) -> None:
    assert process.stderr is not None
    with contextlib.suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
        async for output in process.stderr:
            log.add(output)
