"""Malformed requests of an agent's program: refused in OpenAI's form, not tried again, and
no turn of the episode."""

import http.client
import json
from collections.abc import Iterator
from random import Random
from typing import Any
from urllib.parse import urlsplit

import openai

from posttrain.types import StopReason
from tests.rollout.agents.program_episodes import play
from tests.rollout.lock_world import say


def wrong_values(random: Random, *right: type) -> Any:
    """A JSON value of none of these types, never null or empty: those are left out values."""
    values = [3, -0.5, "x", True, [0], ["x", None], [[]], {"a": 1}, {"role": {"b": []}}, [{"type": "text"}], {"": [{}]}]
    return random.choice([value for value in values if type(value) not in right])


def malformed_bodies(random: Random) -> Iterator[bytes]:
    """One of each kind, with what is wrong drawn anew."""
    user = {"role": "user", "content": "open it"}

    def with_message(**changes: Any) -> dict[str, Any]:
        return {"model": "policy", "messages": [user, {"role": "assistant", "content": "yes"} | changes]}

    def with_call(**changes: Any) -> dict[str, Any]:
        made = {"id": "1", "type": "function", "function": {"name": "try_code", "arguments": "{}"}}
        return with_message(
            tool_calls=[{name: value for name, value in (made | changes).items() if value != "left out"}]
        )

    def with_tool(function: Any) -> dict[str, Any]:
        return {"messages": [user], "tools": [{"type": "function", "function": function}]}

    whole = json.dumps(with_call()).encode()
    depth = random.choice([120, 500, 990, 3000, 100_000])
    yield whole[: random.randrange(len(whole))]
    yield whole + random.choice([b"}", b"x", whole])
    yield random.randbytes(random.randrange(1, 2000))
    yield whole.replace(b"open it", random.choice([b"\xff\xfe", b"\xc3", b"\xed\xa0\x80", b"\x00", b"\n"]))
    yield whole.decode().encode(random.choice(["utf-16", "utf-32", "utf-8-sig"]))
    yield whole.replace(b"open it", random.choice([rb"\ud800", rb"\udfff and", rb"\x41", rb"\u12"]))
    yield b'{"messages": ' + random.choice([b"NaN", b"-Infinity", b"9" * 5000, b"[" * depth, b"{" * depth]) + b"}"
    yield b'{"messages": [{"role": "user", "content": "x"}], "tools": ' + b"[" * depth + b"]" * depth + b"}"
    bodies: list[Any] = [
        wrong_values(random),
        {"messages": wrong_values(random, list)},
        {"messages": random.choice([None, [], {}, ""])},
        {"model": "policy"},
        {"messages": [wrong_values(random, dict)]},
        {"messages": [{"content": "no role"}]},
        {"messages": [user, {"role": wrong_values(random), "content": "x"}]},
        {"messages": [{"role": random.choice(["oracle", "User", "", "function", "user "]), "content": "x"}]},
        {"messages": [{"role": random.choice(["assistant", "tool"]), "content": "x", "tool_call_id": "1"}]},
        {"messages": [{"role": "user", "content": wrong_values(random, str)}]},
        {"messages": [{"role": "user", "content": [wrong_values(random, dict)]}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": wrong_values(random, str)}]}]},
        with_message(tool_calls=wrong_values(random)),
        with_call(id=wrong_values(random, str)),
        with_call(id="left out"),
        with_call(function=random.choice([wrong_values(random), "left out"])),
        with_call(function={"name": wrong_values(random, str), "arguments": "{}"}),
        with_call(function={"name": "try_code", "arguments": wrong_values(random, str)}),
        with_message(role="tool", tool_call_id=wrong_values(random, str)),
        with_message(reasoning_content=wrong_values(random, str)),
        {"messages": [user], "tools": wrong_values(random)},
        with_tool(wrong_values(random)),
        with_tool({"name": wrong_values(random, str)}),
        with_tool({"name": "x", "description": wrong_values(random, str)}),
        with_tool({"name": "x", "parameters": wrong_values(random, dict)}),
        {
            "messages": [user],
            random.choice(["n", "stream", "stop", "tool_choice", "response_format", "modalities"]): wrong_values(
                random, bool
            ),
        },
    ]
    yield from (json.dumps(body).encode() for body in bodies)


def wrong_requests(chat: str, good: bytes, key: str) -> Iterator[tuple[str, str, bytes, dict[str, str]]]:
    """Method, path, body and headers, where all but one are right."""
    for method in ("GET", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE", "NONSENSE"):
        yield method, chat, good, {}
    for path in (
        "/",
        "//",
        "/e//v1/models",
        chat + "/",
        "/e/%00/v1/chat/completions",
        "/%ff%fe",
        "/v1/chat/completions",
        "/e/../" + chat,
    ):
        yield "POST", path, good, {}
    for given in ("", "Bearer", "Bearer ", "Basic " + key, f"Bearer {key}x", "Bearer grün", key):
        yield "POST", chat, good, {"Authorization": given}


def test_whatever_is_sent_is_refused_in_openais_form_is_not_tried_again_and_costs_no_turn():
    random, refused = Random(7), []

    def send_all(task):
        base = urlsplit(task.base_url)
        chat, good, right = (
            f"{base.path}/chat/completions",
            json.dumps({"messages": task.messages}).encode(),
            {"Authorization": f"Bearer {task.api_key}"},
        )
        bodies = [("POST", chat, body, {}) for _ in range(10) for body in malformed_bodies(random)]
        for method, path, body, headers in (*bodies, *wrong_requests(chat, good, task.api_key)):
            connection = http.client.HTTPConnection(base.hostname, base.port, timeout=30)
            connection.request(method, path, body, right | headers)
            answer = connection.getresponse()
            refused.append(
                (answer.status, answer.headers["x-should-retry"], answer.read(), method, path, body[:200], headers)
            )
        with openai.OpenAI(base_url=task.base_url, api_key=task.api_key) as client:
            client.chat.completions.create(model=task.model, messages=task.messages, tools=task.tools)

    trajectory = play(send_all, say("done"))
    assert len(refused) > 350
    for status, is_retried, text, method, *asked in refused:
        assert (400 <= status < 500, is_retried) == (True, "false"), (status, text, method, asked)
        if method != "HEAD":
            error = json.loads(text)["error"]
            assert set(error) == {"message", "type", "param", "code"}
            assert 0 < len(error["message"]) < 1000, error
    assert {status for status, *_ in refused} == {400, 401, 404, 405}
    assert (len(trajectory.turns), trajectory.stop_reason, trajectory.num_forks) == (1, StopReason.DONE, 0)
