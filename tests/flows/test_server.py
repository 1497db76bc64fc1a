"""A real Prefect server as `make serve` and flows start it: it answers who knows its secret, under
its own names, and to no other site's page."""

import asyncio
import base64
import http.client
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest
import websockets

from flows.serve import read_secret
from flows.server import SERVER_AUTH, listen, new_secret, start_server, wait_for_server
from posttrain.runtime.exits import ConfigurationError, Interrupted
from tests.pipeline.toy import environment_of
from tests.waiting import wait_until

pytestmark = pytest.mark.xdist_group("server")  # one worker makes what they share

EVIL = "http://evil.example"


@dataclass
class Running:
    port: int
    secret: str
    home: Path

    def ask(self, method, path, content=None, *, secret=None, **headers):
        """Status, headers and body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        known = {"Authorization": basic(secret)} if secret else {}
        body = json.dumps(content or {}) if method == "POST" else None
        connection.request(method, path, body, {"Content-Type": "application/json", **known, **headers})
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read().decode()


def basic(secret):
    return "Basic " + base64.b64encode(secret.encode()).decode()


@pytest.fixture(scope="module")
def running(tmp_path_factory, repository):
    home, secret, listening = tmp_path_factory.mktemp("home") / "prefect", new_secret(), listen(0)
    port = listening.getsockname()[1]
    with (home.parent / "log").open("ab") as log:
        server = start_server(
            listening, secret, environment_of(repository, PREFECT_HOME=str(home)), is_temporary=False, output=log
        )
    wait_for_server(server, port, patience_s=180)
    yield Running(port, secret, home)
    server.terminate()
    assert server.wait(60) in (0, -signal.SIGTERM), (home.parent / "log").read_text()


@pytest.mark.needs_prefect
def test_who_knows_the_secret_is_answered_and_nobody_else(running):
    asked = ("POST", "/api/deployments/filter")
    assert running.ask(*asked, secret=running.secret)[0] == 200
    for others in (None, "posttrain:guessed", running.secret[:-1], running.secret + "x", "\0"):
        status, headers, body = running.ask(*asked, secret=others)
        assert (status, json.loads(body)) == (401, {"exception_message": "Unauthorized"}), others
        assert (
            "www-authenticate" not in headers
        )  # a browser that had been asked for it would send it along with any page's request
    assert running.ask(*asked, secret="grün")[0] >= 400  # Prefect cannot compare it: 500


@pytest.mark.needs_prefect
def test_all_that_a_server_has_is_closed_but_how_it_is(running):
    api = json.loads(running.ask("GET", "/openapi.json")[2])["paths"]
    assert len(api) > 100
    open_paths = []
    for path, methods in api.items():
        for method in methods:
            if running.ask(method.upper(), "/api" + path.format_map(_AnyId()))[0] != 401:
                open_paths.append((method, path))
    assert sorted(open_paths) == [("get", "/health"), ("get", "/ready")]


class _AnyId(dict):
    def __missing__(self, name):
        return "00000000-0000-0000-0000-000000000000"


@pytest.mark.needs_prefect
@pytest.mark.parametrize(
    "origin", [EVIL, "null", "http://127.0.0.1:1", "https://127.0.0.1:{port}", "http://localhost.evil.example:{port}"]
)
def test_a_page_of_another_origin_may_neither_ask_nor_read(running, origin):
    origin = origin.format(port=running.port)
    for method, secret in (("GET", None), ("POST", running.secret), ("OPTIONS", None)):
        asked = (
            {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
            if method == "OPTIONS"
            else {}
        )
        status, headers, _ = running.ask(method, "/api/deployments/filter", secret=secret, Origin=origin, **asked)
        assert status == 403
        assert not [name for name in headers if name.startswith("access-control-")]


@pytest.mark.needs_prefect
@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_the_servers_own_pages_ask_it_under_either_of_its_names(running, name):
    origin = f"http://{name}:{running.port}"
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    status, headers, _ = running.ask("OPTIONS", "/api/deployments/filter", Origin=origin, **asked)
    assert (status, headers["access-control-allow-origin"]) == (200, origin)
    assert (
        running.ask(
            "POST", "/api/deployments/filter", secret=running.secret, Origin=origin, Host=f"{name}:{running.port}"
        )[0]
        == 200
    )
    assert "<html" in running.ask("GET", "/", Host=f"{name}:{running.port}")[2]


@pytest.mark.needs_prefect
@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:{port}", "127.0.0.1.evil.example", "0.0.0.0", "", "[::1]:{port}", "localhost."],
)
def test_a_site_whose_name_was_made_to_lead_to_this_machine_is_refused(running, host):
    for path in ("/", "/api/health", "/api/deployments/filter"):
        assert running.ask("GET", path, secret=running.secret, Host=host.format(port=running.port))[0] == 400


@pytest.mark.needs_prefect
@pytest.mark.parametrize(
    "path",
    [
        "events/in",
        "events/out",
        "logs/out",
        "task_runs/subscriptions/scheduled",
        "work_pools/posttrain-process/workers/connect",
    ],
)
def test_no_socket_is_open_without_the_secret(running, path):
    async def hears(token, origin=None, subprotocols=("prefect",)):
        """The server's answer to an auth message; its code where it closes."""
        try:
            async with websockets.connect(
                f"ws://127.0.0.1:{running.port}/api/{path}",
                subprotocols=subprotocols,
                origin=origin,
                proxy=None,
                open_timeout=30,
            ) as opened:
                await opened.send(json.dumps({"type": "auth", "token": token}))
                return json.loads(await asyncio.wait_for(opened.recv(), 30))["type"]
        except websockets.ConnectionClosed as closed:
            return closed.rcvd.code
        except websockets.InvalidStatus as refused:
            return refused.response.status_code

    assert asyncio.run(hears(running.secret, subprotocols=None)) in (403, 1002, 1008)
    assert [asyncio.run(hears(token)) for token in (None, "", "posttrain:guessed")] == [1008] * 3
    assert asyncio.run(hears(running.secret, origin=EVIL)) == 403
    assert asyncio.run(hears(running.secret)) == "auth_success"


@pytest.mark.needs_prefect
def test_the_server_itself_does_what_an_automation_asks_of_it(running):
    def post(path, content):
        status, _, body = running.ask("POST", f"/api/{path}", content, secret=running.secret)
        for _ in range(20):  # its database is busy: Prefect's own clients ask again, too
            if status != 503:
                break
            time.sleep(1)
            status, _, body = running.ask("POST", f"/api/{path}", content, secret=running.secret)
        assert status in (200, 201, 204), body
        return json.loads(body or "null")

    run = post("flow_runs/", {"flow_id": post("flows/", {"name": "a-flow"})["id"], "state": {"type": "RUNNING"}})["id"]
    about = {"prefect.resource.id": f"prefect.flow-run.{run}"}
    trigger = {
        "type": "event",
        "posture": "Reactive",
        "match": about,
        "expect": ["it.ended"],
        "threshold": 1,
        "within": 0,
    }
    action = {"type": "change-flow-run-state", "state": "CRASHED"}
    post("automations/", {"name": "marks", "trigger": trigger, "actions": [action]})

    def state():
        return json.loads(running.ask("GET", f"/api/flow_runs/{run}", secret=running.secret)[2])["state"]["type"]

    def is_done():  # the server may not have taken the automation in yet when it is told of the first
        now = datetime.now(UTC).isoformat()
        post("events", [{"event": "it.ended", "resource": about, "occurred": now, "id": str(uuid.uuid4())}])
        time.sleep(1)
        return state() == "CRASHED"

    wait_until(is_done, limit_s=180, what="the automation")


@pytest.mark.needs_prefect
def test_the_secret_is_on_no_command_line_and_what_the_server_writes_is_this_users_alone(running):
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            assert running.secret.encode() not in process.read_bytes()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    assert (running.home / "prefect.db").exists()
    for path in (running.home, *running.home.rglob("*")):
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path
        assert not path.is_file() or running.secret.encode() not in path.read_bytes(), path
    assert running.secret.encode() not in (running.home.parent / "log").read_bytes()


@pytest.mark.needs_prefect
def test_a_server_dies_with_who_started_it_however_that_died(tmp_path, repository):
    script = (
        "import os, sys, time\nfrom flows.server import listen, new_secret, start_server\n"
        "listening = listen(0)\nport = listening.getsockname()[1]\n"
        "server = start_server(listening, new_secret(), dict(os.environ), is_temporary=True)\n"
        "print(server.pid, port, flush=True)\ntime.sleep(600)\n"
    )
    environment = environment_of(repository, PREFECT_HOME=str(tmp_path / "prefect"))
    starter = subprocess.Popen([sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, text=True)
    pid, port = map(int, starter.stdout.readline().split())
    is_up = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    is_up.request("GET", "/api/health")
    assert is_up.getresponse().status == 200
    server = psutil.Process(pid)
    starter.kill()
    starter.wait()
    assert server.wait(20) is None  # whoever adopts it is told how it ended
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port)).close()


@pytest.mark.needs_prefect
def test_a_server_without_a_secret_does_not_start(tmp_path, repository):
    environment = environment_of(repository, PREFECT_HOME=str(tmp_path))
    for secret in ({}, {SERVER_AUTH: ""}):
        command = [sys.executable, "-m", "flows.server", "0", str(os.getpid())]
        ended = subprocess.run(
            command, env=environment | secret, cwd=repository, capture_output=True, text=True, check=False
        )
        assert (ended.returncode, "PREFECT_SERVER_API_AUTH_STRING is not set" in ended.stderr) == (1, True), (
            ended.stderr
        )


@pytest.mark.needs_prefect
def test_a_server_whose_starter_has_gone_does_not_start(tmp_path, repository):
    environment = environment_of(repository, PREFECT_HOME=str(tmp_path), **{SERVER_AUTH: "x:y"})
    ended = subprocess.run(
        [sys.executable, "-m", "flows.server", "0", "1"],
        env=environment,
        cwd=repository,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "has ended before it began" in ended.stderr


@pytest.mark.needs_prefect
def test_a_server_that_ends_while_it_starts_is_said_so(tmp_path, repository):
    listening = listen(0)
    port = listening.getsockname()[1]
    broken = environment_of(repository, PREFECT_HOME=str(tmp_path), PREFECT_API_DATABASE_CONNECTION_URL="nonsense://")
    with (tmp_path / "log").open("wb") as log:
        server = start_server(listening, new_secret(), broken, is_temporary=True, output=log)
    with pytest.raises(Interrupted, match=r"ended with \d+ while it started; see .*log"):
        wait_for_server(server, port, patience_s=60, log=tmp_path / "log")
    with pytest.raises(ConfigurationError, match="port 99999"):
        listen(99999)


def test_the_secret_is_made_once_for_this_user_alone(tmp_path):
    path = tmp_path / "auth"
    before = os.umask(0)
    try:
        first = read_secret(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(first) > 50
    assert read_secret(path) == first
    path.unlink()
    assert read_secret(path) != first


@pytest.mark.parametrize("how", ["all may read it", "it is empty", "it is a link"])
def test_a_secret_that_others_could_know_is_made_anew(tmp_path, how):
    path = tmp_path / "auth"
    first = read_secret(path)
    if how == "all may read it":
        path.chmod(0o604)
    elif how == "it is empty":
        path.write_text("")
    else:
        path.rename(tmp_path / "theirs")
        path.symlink_to(tmp_path / "theirs")
    assert read_secret(path) not in (first, "")
    assert (stat.S_IMODE(path.lstat().st_mode), path.is_symlink()) == (0o600, False)
