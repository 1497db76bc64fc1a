"""An MCP server as a process of ours, spoken to over its stdin and stdout, that can fill neither
the memory nor the disk.

The SDK's own transport reads a line however long it is, in time that grows with its square (50 MB
hold the event loop, and with it all episodes, for a minute), and needs a file for what the server
writes to its stderr. Here a line has a limit: the answer that passes it, or cannot be read, becomes
an error of its request, the rest of it is thrown away and the server goes on. Of its stderr the end
is kept. Its process is ended as the SDK does it.
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

UNREAD = -32099  # the code of an answer too long or broken, of the range that JSON-RPC leaves to its users
_MAX_UNASKED = 10_000  # messages in a row that answer nothing: each costs us time, and a request of the server a task
_MAX_OBJECTS = 1_000_000  # in an answer: each takes 400 bytes while it is read, however few it has
_KEPT_BYTES = 2**16
_SAID_CHARS = 500
_ID = re.compile(rb'"id"\s*:\s*(?:(\d{1,18})|"([^"\\]{1,200})")')


class LastWords:
    """The end of what a server said that was no answer."""

    def __init__(self) -> None:
        self._kept = b""

    def add(self, said: bytes) -> None:
        self._kept = (self._kept + said)[-_KEPT_BYTES:]

    def text(self) -> str:
        """Without keys; empty where it said nothing."""
        return redact(self._kept.decode(errors="replace")).strip()[-_SAID_CHARS:]


@contextlib.asynccontextmanager
async def stdio_transport(
    command: Sequence[str], env: Mapping[str, str], words: LastWords
) -> AsyncIterator[TransportStreams]:
    """The process runs as long as the block. Raises OSError where it cannot be started."""
    process = await anyio.open_process(
        list(command), env={**get_default_environment(), **env}, stderr=subprocess.PIPE, start_new_session=True
    )
    to_client, read_stream = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write_stream, from_client = anyio.create_memory_object_stream[SessionMessage](0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_listen, process, to_client, words)
        tasks.start_soon(_speak, process, from_client)
        tasks.start_soon(_keep, process, words)
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


async def _listen(process: Process, to_client: ObjectSendStream[SessionMessage | Exception], words: LastWords) -> None:
    """Hand over what it answers; its end is the end of the stream, and so is a flood of messages
    that answer nothing."""
    assert process.stdout is not None
    num_unasked = 0
    async with to_client:
        with contextlib.suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
            async for line in _lines(process.stdout):
                message = _message(line, words)
                is_answer = message is not None and not hasattr(message.message, "method")
                num_unasked = 0 if is_answer else num_unasked + 1
                if num_unasked > _MAX_UNASKED:
                    words.add(b"\n(%d messages and no answer: it is listened to no more)" % num_unasked)
                    break
                if message is not None:
                    await to_client.send(message)
    with contextlib.suppress(anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
        while True:  # nobody reads on; a full pipe would keep it from ending
            await process.stdout.receive()


async def _lines(stdout: ByteReceiveStream) -> AsyncIterator[bytes]:
    """Whole lines; a longer one than the limit as soon as it is that, and no more of it."""
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


def _message(line: bytes, words: LastWords) -> SessionMessage | None:
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
        words.add(line[:_SAID_CHARS] + b"\n" if len(line) <= MAX_ANSWER_BYTES else f"({why})\n".encode())
        return None
    number = int(asked[1]) if asked[1] else asked[2].decode(errors="replace")
    return SessionMessage(JSONRPCError(jsonrpc="2.0", id=number, error=ErrorData(code=UNREAD, message=why)))


async def _speak(process: Process, from_client: ObjectReceiveStream[SessionMessage]) -> None:
    assert process.stdin is not None
    with contextlib.suppress(
        anyio.ClosedResourceError, anyio.BrokenResourceError, OSError
    ):  # `_listen` meets the end of it too
        async with from_client:
            async for message in from_client:
                await process.stdin.send(
                    message.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
                )


async def _keep(process: Process, words: LastWords) -> None:
    assert process.stderr is not None
    with contextlib.suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
        async for said in process.stderr:
            words.add(said)
