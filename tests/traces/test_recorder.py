"""`posttrain record` as a process of its own between real clients and an endpoint of odd bytes."""

import asyncio
import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import zlib
from dataclasses import dataclass
from pathlib import Path

import httpx
import openai
import pytest

from posttrain.traces.exchanges import Exchange, find_exchanges, read_exchange
from posttrain.traces.recorder import ExchangeWriter
from posttrain.traces.store import open_to_read, open_to_write
from posttrain.traces.writer import make_room
from tests.console import posttrain
from tests.traces.episodes import ids, opened, record
from tests.traces.odd_upstream import BROKEN, CASES, STREAM, UNZIPPED, OddUpstream
from tests.waiting import wait_until

KEY = "sk-proj-Ab3dEf6hIj9lMn2pQr5tUv8x"
OTHER_KEY = "tenant/9271-zz"  # of no known kind


@dataclass
class Recording:
    process: subprocess.Popen
    url: str
    key: str
    store: Path

    def found(self, **asked):
        """Exchanges that match, oldest first."""
        with contextlib.closing(open_to_read(self.store)) as connection:
            found = find_exchanges(connection, asked, limit=10_000)
            return [read_exchange(connection, one.exchange_id) for one in reversed(found)]


def start(store: Path, upstream: str, *arguments: str) -> Recording:
    command = [sys.executable, "-m", "posttrain.cli.main", "record", "--upstream", upstream, "--port", "0", *arguments]
    environment = {**os.environ, "POSTTRAIN_TRACES": str(store), "OPENAI_API_KEY": KEY}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    line = process.stdout.readline()
    assert line.startswith("export OPENAI_BASE_URL="), process.communicate()
    url, key = (word.partition("=")[2] for word in line.split()[1:])
    return Recording(process, url, key, store)


@pytest.fixture(scope="module")
def upstream():
    server = OddUpstream()
    yield server
    server.stop()


@pytest.fixture
def recording(upstream, tmp_path, monkeypatch):
    monkeypatch.setenv("POSTTRAIN_TRACES", str(tmp_path / "traces.db"))
    one = start(tmp_path / "traces.db", upstream.url)
    yield one
    one.process.terminate()
    _, errors = one.process.communicate(timeout=60)
    assert (one.process.returncode, errors) == (0, "")


def ask(model, *texts, **others):
    """A request's body; texts are the user's and the assistant's in turn."""
    roles = ("user", "assistant")
    messages = [{"role": roles[at % 2], "content": text} for at, text in enumerate(texts or ("hello",))]
    return {"model": model, "messages": messages, **others}


def post(base_url, body, **headers):
    """Status, content type, bytes as they were on the wire, and how it ended."""
    content, error = b"", ""
    with httpx.stream("POST", f"{base_url}/chat/completions", json=body, headers=headers, timeout=60) as response:
        try:
            for piece in response.iter_raw():
                content += piece
        except httpx.RemoteProtocolError as broken:
            error = type(broken).__name__
    return response.status_code, response.headers["content-type"], content, error


@pytest.mark.parametrize("case", [case for case in CASES if case != "endless"])
def test_a_program_gets_the_bytes_of_the_upstream_and_they_are_in_the_store(recording, upstream, case):
    assert post(recording.url, ask(case)) == post(upstream.url, ask(case))
    status, _, content, _, _ = CASES[case]
    [one] = recording.found()
    assert (one.model, one.status, json.loads(one.request)["model"]) == (case, status, case)
    if case == "brotli":
        assert one.response.decode().startswith("… [the rest is cut: compressed by br")
    else:
        assert one.response == (UNZIPPED if case == "gzip" else content)
    failures = {"broken": "the upstream broke off", "error event": "overloaded in mid-stream"}
    failures |= {"400": "400: too long 北", "429": "429: slow down", "500": "500: <html>oh no</html>"}
    assert one.failure.startswith(failures.get(case, "")), one.failure
    assert bool(one.failure) == (case in failures)
    assert 0 < one.first_byte_s <= one.latency_s < 60


def test_pieces_of_a_stream_come_while_it_goes_on(recording):
    with httpx.stream("POST", f"{recording.url}/chat/completions", json=ask("endless"), timeout=60) as response:
        assert next(response.iter_raw()).startswith(b": still here")
        assert recording.found() == []


def test_a_program_that_goes_away_is_recorded_with_what_came_and_ends_the_request_upstream(recording, upstream):
    with httpx.stream("POST", f"{recording.url}/chat/completions", json=ask("endless"), timeout=60) as response:
        next(response.iter_raw())
    [one] = wait_until(recording.found)
    assert one.failure.startswith("the program went away")
    assert one.response.startswith(b": still here")
    wait_until(lambda: upstream.num_hung_up, what="the end of the upstream's stream")


def test_the_openai_client_reads_streams_calls_and_errors_as_ever(recording):
    with openai.OpenAI(base_url=recording.url, api_key=KEY, max_retries=0) as client:
        assert client.chat.completions.create(**ask("plain")).choices[0].message.content == "Grüße 北京"
        chunks = list(client.chat.completions.create(**ask("stream", stream=True)))
        assert "".join(one.choices[0].delta.content or "" for one in chunks) == "Grüße, 北京 🙂"
        with pytest.raises(openai.BadRequestError, match="too long 北"):
            client.chat.completions.create(**ask("400"))
        with pytest.raises(openai.APIError, match="overloaded in mid-stream"):
            list(client.chat.completions.create(**ask("error event", stream=True)))
        with pytest.raises((openai.APIConnectionError, httpx.RemoteProtocolError)):
            list(client.chat.completions.create(**ask("broken", stream=True)))
        events = list(client.responses.create(model="responses", input="x", stream=True))
        assert events[-1].type == "response.completed"
    assert [one.failure != "" for one in recording.found()] == [False, False, True, True, True, False]
    assert recording.found()[-1].path == "/v1/responses"


def test_fifty_sessions_at_once_are_kept_apart(recording):
    """All have one opening, and are told apart by what follows it."""

    async def converse(client, at):
        texts = ["begin"]
        for turn in range(4):
            answered = await client.chat.completions.create(**ask("echo", *texts), extra_body={"user": str(at)})
            assert answered.choices[0].message.content == str({"role": "user", "content": texts[-1]})
            texts += [answered.choices[0].message.content, f"{at} asks {turn}"]

    async def all_at_once():
        async with openai.AsyncOpenAI(base_url=recording.url, api_key=KEY, max_retries=0) as client:
            await asyncio.gather(*(converse(client, at) for at in range(50)))

    asyncio.run(all_at_once())
    found = recording.found()
    assert len(found) == 200
    later = [one for one in found if len(json.loads(one.request)["messages"]) > 3]  # from where they differ
    told = {(json.loads(one.request)["user"], one.session) for one in later}
    assert (len(later), len({user for user, _ in told}), len(told)) == (100, 50, 50)


def test_a_session_is_a_header_or_a_conversation_that_grows(recording):
    for body, headers in (
        (ask("echo", "a"), {}),
        (ask("echo", "a", str({"role": "user", "content": "a"}), "b"), {}),  # the answer, as it was
        (ask("echo", "a", "an answer that was edited", "b"), {}),
        (ask("echo", "a"), {}),  # answered before: another sample
        (ask("echo", "z"), {"X-Session-Id": "mine"}),
        (ask("echo", "z", "y", "x"), {}),
        (ask("429", "q"), {}),
        (ask("429", "q"), {}),  # a retry
    ):
        post(recording.url, body, **headers)
    sessions = [one.session for one in recording.found()]
    assert [sessions.index(one) for one in sessions] == [0, 0, 0, 3, 4, 4, 6, 6]
    assert sessions[4] == "mine"


def test_no_key_reaches_the_record_and_the_right_one_goes_upstream(recording, upstream):
    body = ask("echo", f"my key is {KEY}, the other {OTHER_KEY}")
    secrets = {"Authorization": f"Bearer {OTHER_KEY}", "api-key": "another-3141592653", "Cookie": "sid=2718281828459"}
    post(recording.url, body, **secrets)
    assert f"authorization: bearer {OTHER_KEY}" in upstream.seen[-1][0].lower()
    assert OTHER_KEY in upstream.seen[-1][1].decode()
    path = "chat/completions?api_key=1618033988749"
    httpx.post(f"{recording.url}/{path}", json=ask("plain"), headers={"Authorization": f"Bearer {recording.key}"})
    assert f"authorization: bearer {KEY}".lower() in upstream.seen[-1][0].lower()
    assert "api_key=1618033988749" in upstream.seen[-1][0]
    httpx.post(f"{recording.url}/chat/completions", json=ask("plain"))
    assert "authorization:" not in upstream.seen[-1][0].lower()
    with contextlib.closing(sqlite3.connect(recording.store)) as connection:
        rows = connection.execute("SELECT path || headers || failure || session, request, response FROM exchanges")
        text = "".join(row[0] + zlib.decompress(row[1]).decode() + zlib.decompress(row[2]).decode() for row in rows)
    assert [one for one in (KEY, OTHER_KEY, recording.key, "31415926", "27182818", "16180339") if one in text] == []
    assert "my key is [key removed: OPENAI_API_KEY], the other [key removed]" in text


def test_other_hosts_pages_and_paths_are_refused_and_gets_go_through_without_a_record(recording, upstream):
    for headers, path, status in (
        ({"Host": "evil.example"}, "/models", 403),
        ({"Origin": "http://evil.example"}, "/models", 403),
        ({}, "/../metrics", 404),
        ({}, "/models?limit=%2F1", 200),
    ):
        assert httpx.get(recording.url + path, headers=headers).status_code == status
    assert upstream.seen[-1][0].startswith("GET /v1/models?limit=%2F1 HTTP/1.1")
    assert recording.found() == []


def test_an_exchange_is_found_by_time_id_model_and_text_and_shown_whole(recording):
    post(recording.url, ask("stream", "何か look"))
    post(recording.url, ask("500"))
    first, second = recording.found()

    def listed(*arguments):
        lines = posttrain("traces", "list", "--recorded", *arguments).stdout.splitlines()
        return [line.split()[0] for line in lines[1:-1]]

    assert listed() == ["2", "1"]
    for asked in (["--request-id", "req-stream"], ["--model", "stream"], ["--session", first.session]):
        assert listed(*asked) == ["1"], asked
    for text in ("何か", "北京 🙂", "Grüße, 北京"):
        assert listed("--grep", text) == ["1"], text
    assert listed("--failed") == listed("--limit", 1) == listed("--grep", "oh no") == ["2"]
    assert (listed("--since", "2h"), listed("--until", "2h")) == (["2", "1"], [])
    assert listed("--since", time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(second.started_at + 2))) == []
    shown = posttrain("traces", "show", "--recorded", 1).stdout
    assert "user\n  何か look\n\nassistant\n  Grüße, 北京 🙂\n" in shown
    assert '"arguments": "{\\"a\\":1}"' in shown
    case = json.loads(posttrain("traces", "export", "--recorded", 1).stdout)
    assert case["response"]["body"].encode() == STREAM
    again = case["request"]
    assert post(recording.url, json.loads(again["body"]))[2] == STREAM
    assert (again["method"], again["path"], case["request_id"]) == ("POST", "/v1/chat/completions", "req-stream")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["list", "--grep", "x"], 78, "--grep asks about exchanges: add --recorded"),
        (["list", "--recorded", "--tool", "x"], 78, "--tool asks about episodes: leave out --recorded"),
        (["export", "--recorded", 1, "--step", "3"], 78, "--step asks about episodes"),
        (["list", "--recorded", "--since", "soon"], 78, "'soon' is no time"),
        (["list", "--recorded"], 65, "nothing is recorded in this store yet"),
        (["show", "--recorded", 7], 65, "there is no exchange 7"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_sentence(tmp_path, monkeypatch, arguments, code, message):
    monkeypatch.setenv("POSTTRAIN_TRACES", str(tmp_path / "traces.db"))
    open_to_write(tmp_path / "traces.db").close()
    result = posttrain("traces", *arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    assert message in result.stderr


def test_a_store_that_cannot_be_written_is_told_and_breaks_no_program(upstream, tmp_path):
    recording = start(tmp_path / "traces.db", upstream.url)
    with contextlib.closing(sqlite3.connect(recording.store)) as connection:
        connection.execute("ALTER TABLE exchanges RENAME TO gone")
        assert post(recording.url, ask("stream"))[2] == STREAM
        connection.execute("ALTER TABLE gone RENAME TO exchanges")
    assert post(recording.url, ask("broken"))[2] == BROKEN
    assert [one.model for one in recording.found()] == ["broken"]
    recording.process.terminate()
    assert "[record] an exchange is not recorded, requests go on: " in recording.process.communicate(timeout=60)[1]


def test_an_upstream_that_is_not_there_is_an_error_of_the_gateway(tmp_path):
    recording = start(tmp_path / "traces.db", "http://127.0.0.1:9")
    assert post(recording.url, ask("plain"))[0] == 502
    [one] = recording.found()
    assert (one.status, one.failure.split(":")[0]) == (None, "http")
    recording.process.terminate()
    recording.process.communicate(timeout=60)


def test_the_oldest_go_first_from_a_full_store_episodes_and_exchanges_alike(tmp_path):
    path = tmp_path / "traces.db"
    record(path, "old", [opened()] * 300, started_at=1.0)

    async def put():
        for at in range(400):
            await writer.put(Exchange(started_at=2.0 + at, path="/v1/x", request=random.Random(at).randbytes(1500)))

    writer = ExchangeWriter(path, max_bytes=10**9)
    asyncio.run(put())
    writer.close()
    record(path, "new", [opened()] * 300, started_at=10**9)
    with contextlib.closing(open_to_write(path)) as connection:
        make_room(connection, max_bytes=500_000)
        left = [one.started_at for one in find_exchanges(connection, {}, limit=1000)]
    assert (len(ids(path, stage="old")), len(ids(path, stage="new"))) == (0, 300)
    assert 10 < len(left) < 350
    assert left == [401.0 - at for at in range(len(left))]


def lost_at_kill(upstream: OddUpstream, store: Path, after_s: float) -> tuple[int, int]:
    """Exchanges whose whole answer some program has, and how many of these are not in the store."""
    recording, answered, threads = start(store, upstream.url), [], []

    def work(name):
        with contextlib.suppress(httpx.TransportError), httpx.Client(timeout=60) as client:
            for at in range(10**6):
                model, text = ("whole stream", "plain", "echo")[at % 3], f"{name} asks {at}"
                got = b""
                with client.stream("POST", f"{recording.url}/chat/completions", json=ask(model, text)) as response:
                    for piece in response.iter_raw():
                        got += piece
                        if b"[DONE]" in got:  # a client of streams may stop here
                            break
                answered.append(text)

    for name in range(8):
        threads.append(threading.Thread(target=work, args=(f"{store.stem} {name}",)))
        threads[-1].start()
    wait_until(lambda: answered)
    time.sleep(after_s)
    recording.process.send_signal(signal.SIGKILL)
    for one in threads:
        one.join()
    recording.process.communicate()
    kept = {json.loads(one.request)["messages"][0]["content"] for one in recording.found()}
    return len(answered), len(set(answered) - kept)


@pytest.mark.parametrize("num_kills", [2, pytest.param(20, marks=pytest.mark.needs_killed)])
def test_a_kill_loses_no_exchange_that_was_answered(upstream, tmp_path, num_kills):
    draw = random.Random(7)
    ends = [lost_at_kill(upstream, tmp_path / f"{at}.db", draw.uniform(0.05, 0.6)) for at in range(num_kills)]
    print(f"{sum(num for num, _ in ends)} answered exchanges, {num_kills} kills, {sum(lost for _, lost in ends)} lost")
    assert sum(num for num, _ in ends) > 10 * num_kills
    assert [lost for _, lost in ends] == [0] * num_kills
