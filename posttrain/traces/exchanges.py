"""Recorded HTTP exchanges in the trace store: their table, how one is packed, which session it
belongs to, how they are found, and what was answered: JSON, or a stream of server-sent events put
together to the object that the same request answers without `stream`.

Bodies are kept as they were on the wire but for keys, which are cut, and for compression, which is
undone, because keys in it could not be found. The recorder makes the table where it is missing.
"""

import contextlib
import hashlib
import json
import re
import sqlite3
import time
import uuid
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from posttrain.runtime.exits import ConfigurationError, DataError
from posttrain.runtime.limits import clip, reason
from posttrain.runtime.redaction import MIN_KEY_CHARS, redact
from posttrain.runtime.sqlite import transaction

TABLE = """
CREATE TABLE IF NOT EXISTS exchanges (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    request_id TEXT NOT NULL,
    session TEXT NOT NULL,
    started_at REAL NOT NULL,  -- seconds since 1970
    path TEXT NOT NULL,
    model TEXT NOT NULL,
    status INTEGER,  -- null: no answer began
    latency_s REAL NOT NULL,
    first_byte_s REAL,
    failure TEXT NOT NULL,  -- empty: none
    headers TEXT NOT NULL,  -- JSON
    request BLOB NOT NULL,  -- zlib
    response BLOB NOT NULL,  -- zlib
    conversation BLOB,  -- hash of the request's messages
    answered BLOB  -- of these and the answer's, or of the response's id
);
CREATE INDEX IF NOT EXISTS exchanges_by_conversation ON exchanges (conversation);
CREATE INDEX IF NOT EXISTS exchanges_by_answered ON exchanges (answered);
"""
CONDITIONS = {  # `grep` is the last: SQLite reads bodies for it alone
    "since": "started_at >= ?",
    "until": "started_at <= ?",
    "request_id": "request_id = ?",
    "model": "model = ?",
    "session": "session = ?",
    "is_failed": "? AND failure != ''",
    "grep": "holds(request, response, ?)",
}
_SECRET = re.compile(r"auth|key|cookie|secret|token(?!s)", re.IGNORECASE)  # in names of headers and parameters
_PARAMETER = re.compile(rf"([?&][^=&]*(?:{_SECRET.pattern})[^=&]*=)[^&]+", re.IGNORECASE)
_GROWS = ("content", "reasoning_content", "reasoning", "refusal", "arguments")  # texts that come in pieces
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
Headers = Sequence[tuple[str, str]]


@dataclass(slots=True, eq=False)
class Exchange:
    """One request and its answer, in the order of the table's columns. Under way it has no id yet,
    and request id, session and model are known when it is packed."""

    exchange_id: int | None = None
    request_id: str = ""
    session: str = ""
    started_at: float = field(default_factory=time.time)
    path: str = ""
    model: str = ""
    status: int | None = None
    latency_s: float = 0.0
    first_byte_s: float | None = None
    failure: str = ""
    headers: dict[str, Headers] = field(default_factory=dict)  # of `request` and `response`
    request: bytes = b""
    response: bytes = b""


def pack(connection: sqlite3.Connection, exchange: Exchange) -> tuple[Any, ...]:
    """The row of an exchange, without any key."""
    named = {name.lower(): value for side in exchange.headers.values() for name, value in side}
    words = {value.split()[-1] for name, value in named.items() if _SECRET.search(name) and value.strip()}
    # A key that is a word, such as `not-needed`, stands in the conversation for something else.
    keys = [word for word in words if len(word) >= MIN_KEY_CHARS and any(map(str.isdigit, word))]

    def without_keys(text: str) -> str:
        for key in keys:
            text = text.replace(key, "[key removed]")
        return redact(text)

    def short(value: object) -> str:
        return clip(without_keys(str(value)), 200)

    def packed(body: bytes) -> bytes:
        text = without_keys(body.decode("utf-8", "surrogateescape"))
        return zlib.compress(text.encode("utf-8", "surrogateescape"), 1)

    request, answer = read_json(exchange.request), read_answer(exchange.response)
    request = request if isinstance(request, dict) else {}
    messages, prefixes = request.get("messages") or request.get("input"), [b""]  # a hash for each beginning
    for message in messages if isinstance(messages, list) else ():
        prefixes.append(_next(prefixes[-1], message))
    session = named.get("x-session-id") or _find_session(connection, prefixes, request.get("previous_response_id"))
    exchange.session = exchange.session or short(session or uuid.uuid4().hex[:12])
    exchange.request_id = exchange.request_id or short(named.get("x-request-id") or uuid.uuid4().hex)
    error = answer.get("error") or (exchange.response[:500].decode(errors="replace") if _is_error(exchange) else "")
    failure = exchange.failure or (str(error.get("message") or error) if isinstance(error, dict) else str(error))
    failure = f"{exchange.status}: {failure}" if _is_error(exchange) else failure
    headers = {
        side: [(name, "[key removed]" if _SECRET.search(name) else value) for name, value in pairs]
        for side, pairs in exchange.headers.items()
    }
    return (
        *(exchange.exchange_id, exchange.request_id, exchange.session, exchange.started_at),
        *(short(_PARAMETER.sub(r"\1[key removed]", exchange.path)), short(request.get("model", ""))),
        *(exchange.status, exchange.latency_s, exchange.first_byte_s, reason(without_keys(failure))),
        *(without_keys(json.dumps(headers)), packed(exchange.request), packed(exchange.response), prefixes[-1]),
        _next(prefixes[-1], message_of(answer)) if message_of(answer) else _next(b"", answer.get("id")),
    )


def _is_error(exchange: Exchange) -> bool:
    return (exchange.status or 0) >= 400


def _next(before: bytes, message: Any) -> bytes:
    """Hash of a conversation with one more message: what programs send back unchanged of it."""
    if isinstance(message, dict) and message.get("role"):
        calls = json.loads(
            json.dumps(message.get("tool_calls") or []), object_hook=lambda one: one.get("function", one)
        )
        message = [message["role"], message.get("content") or "", calls, message.get("tool_call_id")]
    return hashlib.blake2b(before + json.dumps(message, sort_keys=True).encode(), digest_size=16).digest()


def _find_session(connection: sqlite3.Connection, prefixes: Sequence[bytes], previous: str | None) -> str:
    """The session of the exchange that this request goes on from, empty where there is none.

    The same messages once more are a retry where the first request failed; where it was answered
    they begin another session, as those of many samples of one prompt do.
    """
    asked = [(_next(b"", previous), True)] if previous else []
    asked += [(prefix, prefix != prefixes[-1]) for prefix in reversed(prefixes[1:])]
    statement = (
        "SELECT session FROM exchanges WHERE answered = ?1 OR (conversation = ?1 AND (?2 OR failure != '')) "
        "ORDER BY answered = ?1 DESC, id DESC LIMIT 1"
    )
    found = (connection.execute(statement, each).fetchone() for each in asked)
    return next((str(row[0]) for row in found if row), "")


def parse_time(text: str) -> float:
    """Seconds since 1970 of ISO 8601 (local where it names no zone), or of `90s`, `5m`, `2h` or
    `3d` ago. Raises ConfigurationError."""
    if found := re.fullmatch(r"(\d{1,9})([smhd])", text):
        return time.time() - int(found[1]) * _UNITS_S[found[2]]
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        raise ConfigurationError(f"{text!r} is no time: write 2026-01-31T12:00, or 2h or 3d for so long ago") from None


def find_exchanges(connection: sqlite3.Connection, asked: Mapping[str, Any], *, limit: int) -> list[Exchange]:
    """The newest that meet all `asked` of CONDITIONS, newest first; None and False ask nothing.
    Without headers and bodies. Raises DataError where nothing was ever recorded."""
    if not _has_table(connection):
        raise DataError("nothing is recorded in this store yet: `posttrain record --upstream URL` records a program")
    connection.create_function("holds", 3, _holds, deterministic=True)
    names = [name for name in CONDITIONS if asked.get(name)]
    rows = connection.execute(
        "SELECT id, request_id, session, started_at, path, model, status, latency_s, first_byte_s, failure FROM "
        f"exchanges WHERE {' AND '.join(['1', *(CONDITIONS[name] for name in names)])} ORDER BY id DESC LIMIT ?",
        (*(asked[name] for name in names), limit),
    )
    return [Exchange(*row) for row in rows]


def read_exchange(connection: sqlite3.Connection, exchange_id: int) -> Exchange:
    """Raises DataError where there is none."""
    statement = "SELECT * FROM exchanges WHERE id = ?"
    row = connection.execute(statement, (exchange_id,)).fetchone() if _has_table(connection) else None
    if row is None:
        raise DataError(f"there is no exchange {exchange_id} (any more); `posttrain traces list --recorded` has them")
    exchange, bodies = Exchange(*row[:10]), map(zlib.decompress, row[11:13])
    exchange.headers, (exchange.request, exchange.response) = json.loads(row[10]), bodies
    return exchange


def read_json(body: bytes) -> Any:
    """The JSON value of a body, None where it is none."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def read_answer(body: bytes) -> dict[str, Any]:
    """The answer as one object, also of a stream that was cut off; empty where it is neither a JSON
    object nor events. An error in mid-stream is the object's `error`."""
    if (answer := read_json(body)) is not None:
        return answer if isinstance(answer, dict) else {}
    whole: dict[str, Any] = {}
    for text in re.split(r"(?:\r\n|\n|\r){2}", body.decode("utf-8-sig", "replace")):
        data = [line[5:] for line in re.split(r"[\r\n]+", text) if line.startswith("data:")]
        event = read_json("\n".join(data).encode())
        with contextlib.suppress(AttributeError, TypeError, RecursionError):  # a comment, `[DONE]`, or cut off
            if str(event.get("type")).startswith("response."):
                whole = event.get("response") or whole  # the last event of the Responses API has all of it
            else:
                _merge(whole, {"error": event} if event.get("type") == "error" else event)
    return whole


def message_of(answer: Mapping[str, Any]) -> dict[str, Any]:
    """The first choice's message, empty where there is none."""
    with contextlib.suppress(LookupError, TypeError, ValueError):
        return dict(answer["choices"][0]["message"])
    return {}


def delete_oldest(connection: sqlite3.Connection, *, before: float) -> int:
    """Delete some of the exchanges that began before that time; returns how many."""
    if not _has_table(connection):
        return 0
    oldest = "SELECT id FROM exchanges WHERE started_at < ? ORDER BY id LIMIT 50"
    with transaction(connection):
        return connection.execute(f"DELETE FROM exchanges WHERE id IN ({oldest})", (before,)).rowcount


def _has_table(connection: sqlite3.Connection) -> bool:
    return bool(connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'exchanges'").fetchone())


def _holds(request: bytes, response: bytes, text: str) -> bool:
    """Whether a body holds the text, as it is or as JSON has it; of a stream also its answer."""
    spellings = {one.encode() for one in (text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1])}
    bodies = [zlib.decompress(request), zlib.decompress(response)]
    bodies.append(json.dumps(read_answer(bodies[1]), ensure_ascii=False).encode(errors="replace"))
    return any(one in body for one in spellings for body in bodies)


def _merge(whole: dict[str, Any], chunk: Mapping[str, Any]) -> None:
    """Add a chunk: choices and tool calls go by `index`, and deltas become the message."""
    for name, value in chunk.items():
        name = "message" if name == "delta" else name  # noqa: PLW2901
        if isinstance(value, dict):
            whole[name] = whole.get(name) or {}
            _merge(whole[name], value)
        elif isinstance(value, list):
            parts = whole[name] = whole.get(name) or []
            for part in value:
                known = [one for one in parts if "index" in part and one.get("index") == part["index"]]
                parts += [] if known else [{}]
                _merge((known or parts)[-1], part)
        elif name in _GROWS and isinstance(value, str):
            whole[name] = (whole.get(name) or "") + value
        elif value is not None or name not in whole:
            whole[name] = value
