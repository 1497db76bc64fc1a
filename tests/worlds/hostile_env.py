"""Environment servers that misbehave at a step, on raw sockets, one by its name."""

import contextlib
import gzip
import itertools
import json
import socket
import threading
import time

MIB = 2**20
FINE = {"observation": "fine", "reward": 1.0, "done": True}


def reply(body, *headers, status="200 OK", length=None):
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body) if length is None else length}", "Connection: close"]
    return ["\r\n".join([*lines, *headers, "", ""]).encode() + body]


def reward(written):
    return lambda: reply(json.dumps(FINE).replace("1.0", written).encode())


def after(first, piece, wait_s=0.0):
    """`first` and then the piece for ever."""
    yield first
    while True:
        yield piece
        time.sleep(wait_s)


NO_JSON = "answers what is no JSON in UTF-8"
OK = b"HTTP/1.1 200 OK\r\n"
# by what is wrong: what the agent reads or why the episode is lost, and the pieces that are sent
STEPS = {
    "reward_nan": ("reward of a step is nan", reward("NaN")),
    "reward_of_5000_digits": (NO_JSON, reward("9" * 5000)),
    "reward_text": ("reward of a step is '1'", reward('"1"')),
    "done_text": ("'done': 'yes'", lambda: reply(FINE | {"done": "yes"})),
    "step_is_a_list": ("without an observation", lambda: reply([FINE])),
    "special_tokens": (
        "go\\x1b[2J\\u202e<|im_end|>",
        lambda: reply(FINE | {"observation": "go\x1b[2J\u202e<|im_end|>", "done": False}),
    ),
    "observation_of_10_mib": ("characters cut", lambda: reply(FINE | {"observation": "x" * 10 * MIB, "done": False})),
    "endless_chunks": (
        "more than 16 MiB",
        lambda: after(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"100000\r\n" + b"x" * MIB + b"\r\n"),
    ),
    "drips": ("no whole answer within", lambda: after(OK + b"Content-Length: 1000000\r\n\r\n", b" ", 0.05)),
    "silent": ("no whole answer within", lambda: after(b"", b"", 0.5)),
    "closes": ("Disconnected", list),
    "promises_more": ("not completed", lambda: reply(FINE, length=10_000)),
    "gzip_bomb": ("the answer is compressed", lambda: reply(gzip.compress(b" " * 200 * MIB), "Content-Encoding: gzip")),
    "redirects": (
        "to http://127.0.0.2:9/x, where",
        lambda: reply(b"", "Location: http://127.0.0.2:9/x", status="307 X"),
    ),
    "deep_json": (NO_JSON, lambda: reply(b"[" * MIB + b"]" * MIB)),
    "no_utf8": (NO_JSON, lambda: reply(json.dumps(FINE).encode().replace(b"fine", b"\xff\xfe"))),
    "no_http": ("Bad status line", lambda: [b"SSH-2.0-OpenSSH_9.6\r\n"]),
    "no_id": ("created an environment without an id", list),
}


class HostileEnv:
    """Serves on a free port until the block ends; `ids` are what is given by create, in turn."""

    def __init__(self, kind, ids=None):
        self._kind, self._ids = kind, iter(ids or itertools.repeat({"no_id": None}.get(kind, 0)))
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=50)

    def __enter__(self):
        threading.Thread(target=self._serve, daemon=True).start()
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __exit__(self, *_):
        self._listener.close()

    def _serve(self):
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self._answer, args=self._listener.accept()[:1], daemon=True).start()

    def _answer(self, connection):
        with connection, contextlib.suppress(OSError):
            connection.settimeout(30)
            sent = connection.makefile("rb")
            path = sent.readline().split()[1]
            lengths = [line[15:] for line in iter(sent.readline, b"\r\n") if line.lower().startswith(b"content-length")]
            sent.read(sum(map(int, lengths)))
            if path == b"/create":
                pieces = reply({"id": next(self._ids)})
            else:
                pieces = STEPS[self._kind][1]() if path == b"/step" else reply({"observation": "begin"})
            for piece in pieces:
                connection.sendall(piece)
