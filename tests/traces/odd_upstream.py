"""An OpenAI-compatible endpoint on loopback that answers with canned, odd bytes."""

import asyncio
import gzip
import json
import threading

CALLS = [
    {"index": at, "id": f"call_{at}", "type": "function", "function": {"name": "look", "arguments": ""}}
    for at in range(2)
]


def chunk(delta, finish_reason=None):
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    event = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return f"data: {json.dumps(event, ensure_ascii=False)}".encode()


def answer(text):
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    content = {"id": "chatcmpl-0", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    return json.dumps(content, ensure_ascii=False).encode()


STREAM = b": comment\r\n\r\n" + b"\r\n\r\n".join(
    [
        chunk({"role": "assistant", "content": "Grüße, "}),
        chunk({"content": "北京 🙂"}),
        chunk({"tool_calls": CALLS}),
        *(chunk({"tool_calls": [{"index": at, "function": {"arguments": '{"a":'}}]}) for at in range(2)),
        *(chunk({"tool_calls": [{"index": at, "function": {"arguments": f"{at}}}"}}]}) for at in range(2)),
        chunk({}, "tool_calls"),
        b"data: [DONE]",
        b"",
    ]
)
BROKEN = STREAM[: STREAM.index("北京".encode()) + 1]  # in the middle of a character
ERROR_EVENT = chunk({"content": "so far"}) + b'\n\ndata: {"error": {"message": "overloaded in mid-stream"}}\n\n'
EVENTS, UNZIPPED = "text/event-stream; charset=utf-8", answer("zipped " * 50)
COMPLETED = {
    "type": "response.completed",
    "response": {"id": "resp_1", "object": "response", "output": [{"type": "message", "content": "done"}]},
}
CASES = {  # by the model asked for: status, headers, body, bytes of a piece (0: not chunked), and whether it is cut
    "plain": (200, {"Content-Type": "application/json"}, answer("Grüße 北京"), 0, False),
    "gzip": (200, {"Content-Type": "application/json", "Content-Encoding": "gzip"}, gzip.compress(UNZIPPED), 7, False),
    "brotli": (200, {"Content-Type": "application/json", "Content-Encoding": "br"}, b"\x0b\x02\x80hello\x03", 0, False),
    "stream": (200, {"Content-Type": EVENTS, "x-request-id": "req-stream"}, STREAM, 5, False),
    "whole stream": (200, {"Content-Type": EVENTS}, STREAM, 10**6, False),
    "broken": (200, {"Content-Type": EVENTS}, BROKEN, 50, True),
    "error event": (200, {"Content-Type": EVENTS}, ERROR_EVENT, 10**6, False),
    "endless": (200, {"Content-Type": EVENTS}, b": still here\n\n" * 3000, 14, False),
    "responses": (
        200,
        {"Content-Type": EVENTS},
        b"event: response.completed\ndata: " + json.dumps(COMPLETED).encode() + b"\n\n",
        10**6,
        False,
    ),
    **{
        str(status): (status, {"Content-Type": "application/json", "x-should-retry": "false"}, body, 0, False)
        for status, body in {
            400: b'{"error": {"message": "too long \\u5317", "type": "invalid_request_error"}}',
            429: b'{"error": {"message": "slow down", "code": "rate_limit"}}',
            500: b"<html>oh no</html>",
        }.items()
    },
}


class OddUpstream:
    """Serves at `url`; `seen` has each request's head and body. No case: its last message."""

    def __init__(self):
        self.seen, self.num_hung_up = [], 0
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        server = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=500), self._loop
        )
        self.port = server.result().sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/v1"

    def stop(self):
        self._loop.call_soon_threadsafe(self._loop.stop)

    async def _serve(self, reader, writer):
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                sizes = [line for line in head.lower().splitlines() if line.startswith("content-length:")]
                body = await reader.readexactly(int(sizes[0].split(":")[1]) if sizes else 0)
                self.seen.append((head, body))
                await self._answer(body, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def _answer(self, body, writer):
        asked = json.loads(body or b"{}")
        case = (200, {"Content-Type": "application/json"}, answer(str((asked.get("messages") or [{}])[-1])), 0, False)
        status, headers, content, size, is_cut = CASES.get(asked.get("model"), case)
        length = {"Transfer-Encoding": "chunked"} if size else {"Content-Length": len(content)}
        lines = [f"HTTP/1.1 {status} Odd", *(f"{name}: {value}" for name, value in {**headers, **length}.items())]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        for start in range(0, len(content), size or len(content)):
            piece = content[start : start + (size or len(content))]
            try:
                writer.write(b"%x\r\n%b\r\n" % (len(piece), piece) if size else piece)
                await writer.drain()
                if size < 100:
                    await asyncio.sleep(0.0005)  # a piece is a packet
            except ConnectionError:
                self.num_hung_up += 1
                raise
        if is_cut:
            raise ConnectionError
        writer.write(b"0\r\n\r\n" if size else b"")
