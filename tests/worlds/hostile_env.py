"""Environment servers that misbehave, on raw sockets, one by its name."""

import contextlib
import gzip
import json
import socket
import threading
import time

MIB = 2**20
WANTED = {  # by what is wrong: what the agent reads, or why the episode is lost
    "reward_nan": "reward of a step is nan",
    "reward_infinite": "reward of a step is inf",
    "reward_of_400_digits": "an integer of 1329 bits",
    "reward_of_5000_digits": "answers what is no JSON",
    "reward_1e400": "reward of a step is inf",
    "reward_text": "reward of a step is '1'",
    "reward_null": "reward of a step is None",
    "rewards_too_large": "reward of a step is 1e+300",
    "done_text": "done: {",
    "observation_list": "answers a step without an observation",
    "no_id": "created an environment without an id",
    "long_id": "created an environment without an id",
    "step_is_a_list": "answers a step without an observation",
    "error_of_100_mib": "answers 500",
    "body_of_100_mib": "more than 16 MiB",
    "endless_chunks": "more than 16 MiB",
    "endless_header": "hostile:",
    "endless_headers": "hostile:",
    "endless_continue": "hostile:",
    "drips": "no whole answer within 4 s",
    "silent": "no whole answer within 4 s",
    "closes": "Disconnected",
    "promises_more": "ClientPayloadError",
    "promises_less": "Data after",
    "gzip_bomb": "the answer is compressed",
    "gzip_bomb_unsaid": "answers what is no JSON",
    "redirects": "redirects to http://127.0.0.2:9/step, where nothing is sent",
    "redirects_for_ever": "where nothing is sent",
    "deep_json": "answers what is no JSON",
    "small_objects": "answers a step without an observation",
    "no_utf8": "answers what is no JSON in UTF-8",
    "empty": "answers what is no JSON",
    "page": "answers what is no JSON in UTF-8: '<html>",
    "no_http": "hostile:",
    "control_marks": "go\\x1b[2J\\u202e<|im_end|>",
    "observation_of_10_mib": "characters cut",
    "cookies": "reward 1.0",
}


class HostileEnv:
    """Serves on a free port until the block ends; create and reset are sound unless they are what is
    wrong."""

    def __init__(self, kind: str) -> None:
        self._kind, self._ids = kind, 0
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=50)

    def __enter__(self) -> str:
        threading.Thread(target=self._serve, daemon=True).start()
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(30)
            head, _, body = connection.recv(65536).partition(b"\r\n\r\n")
            length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")), 0)
            while len(body) < length:
                body += connection.recv(65536)
            path = head.split()[1].decode()
            if path == "/step":
                _step(self._kind, connection)
            elif path == "/create":
                given = {"no_id": None, "long_id": "x" * MIB}.get(self._kind, self._ids)
                self._ids += 1
                _send(connection, {"id": given})
            else:
                _send(connection, {"observation": "begin"})


def _step(kind: str, connection: socket.socket) -> None:
    step = {"observation": "fine", "reward": 1.0, "done": True}
    rewards = {
        "reward_nan": "NaN", "reward_infinite": "Infinity", "reward_of_400_digits": "9" * 400,
        "reward_of_5000_digits": "9" * 5000, "reward_1e400": "1e400", "reward_text": '"1"', "reward_null": "null",
        "rewards_too_large": "1e300",
    }  # fmt: skip
    if kind in rewards:
        return _raw(connection, json.dumps(step).replace("1.0", rewards[kind]).encode())
    match kind:
        case "done_text":
            _send(connection, {**step, "done": "yes"})
        case "observation_list":
            _send(connection, {**step, "observation": ["fine"]})
        case "step_is_a_list":
            _send(connection, [step])
        case "control_marks":
            _send(connection, {**step, "observation": "go\x1b[2J\u202e<|im_end|>", "done": False})
        case "observation_of_10_mib":
            _send(connection, {**step, "observation": "x" * 10 * MIB, "done": False})
        case "error_of_100_mib":
            _raw(connection, b"x" * 100 * MIB, status="500 Oh")
        case "body_of_100_mib":
            _send(connection, {**step, "observation": "x" * 100 * MIB})
        case "endless_chunks":
            connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            _for_ever(connection, b"100000\r\n" + b"x" * MIB + b"\r\n")
        case "endless_header":
            connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
            _for_ever(connection, b"x" * MIB)
        case "endless_headers":
            connection.sendall(b"HTTP/1.1 200 OK\r\n")
            _for_ever(connection, b"".join(b"X-%d: %s\r\n" % (index, b"x" * 1000) for index in range(1000)))
        case "endless_continue":
            _for_ever(connection, b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)
        case "drips":
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
            while True:
                connection.sendall(b" ")
                time.sleep(0.05)
        case "silent":
            time.sleep(30)
        case "closes":
            pass
        case "promises_more":
            _raw(connection, json.dumps(step).encode(), length=10_000)
        case "promises_less":
            _raw(connection, json.dumps(step).encode(), length=10)
        case "gzip_bomb":
            _raw(connection, gzip.compress(b" " * 200 * MIB), "Content-Encoding: gzip")
        case "gzip_bomb_unsaid":
            _raw(connection, gzip.compress(b" " * 200 * MIB))
        case "redirects":
            _raw(connection, b"", "Location: http://127.0.0.2:9/step", status="307 Elsewhere")
        case "redirects_for_ever":
            _raw(connection, b"", "Location: /step", status="307 Here")
        case "deep_json":
            _raw(connection, b"[" * 10**6 + b"]" * 10**6)
        case "small_objects":
            _raw(connection, b"[" + b"{}," * 5_000_000 + b"{}]")
        case "no_utf8":
            _raw(connection, json.dumps(step).encode().replace(b"fine", b"\xff\xfe"))
        case "empty":
            _raw(connection, b"")
        case "page":
            _raw(connection, b"<html><h1>Sign in</h1>")
        case "no_http":
            connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")
        case "cookies":
            _raw(connection, json.dumps(step).encode(), *(f"Set-Cookie: c{index}={'x' * 60}" for index in range(90)))
        case _:
            _send(connection, step)


def _send(connection: socket.socket, answer: object) -> None:
    _raw(connection, json.dumps(answer).encode())


def _raw(connection: socket.socket, body: bytes, *headers: str, status: str = "200 OK", length: int = -1) -> None:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body) if length < 0 else length}", "Connection: close"]
    connection.sendall("\r\n".join([*lines, *headers, "", ""]).encode() + body)


def _for_ever(connection: socket.socket, piece: bytes) -> None:
    while True:
        connection.sendall(piece)
