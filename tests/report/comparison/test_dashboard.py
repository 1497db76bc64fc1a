"""Tests of the dashboard's server: closed without the key, and new at each reload."""

import http.client
import threading
from urllib.parse import quote, urlsplit

import pytest

from benchmarks.branches import Branch, make_repository
from posttrain.pipeline.git import git
from posttrain.report.comparison.dashboard import Dashboard
from posttrain.runtime.exits import ConfigurationError
from tests.console import posttrain
from tests.report.outline import Outline

HOSTILE = "exp/<script>alert(1)</script>"


@pytest.fixture
def root(tmp_path):
    branches = [Branch("main"), Branch("exp/a", knobs={"train_sft.lr": 0.004}), Branch(HOSTILE, seed=2)]
    return make_repository(tmp_path / "repository", branches)


@pytest.fixture
def dashboard(root):
    with Dashboard(root) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(server, path, *, key="", host="", method="GET"):
    """Status, headers and text."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    headers = {"Cookie": f"{server.cookie}={key}"} if key else {}
    connection.request(method, path, headers={**headers, **({"Host": host} if host else {})})
    answer = connection.getresponse()
    found = answer.status, answer.headers, answer.read().decode()
    connection.close()
    return found


@pytest.mark.parametrize("path", ["/", "/compare?name=main", "/nowhere"])
def test_without_the_key_nothing_is_answered(dashboard, path):
    assert [ask(dashboard, path, key=key)[0] for key in ("", "guessed", "ä")] == [403] * 3
    status, _, text = ask(dashboard, path, key=dashboard.key, host="evil.example:80")
    assert (status, text) == (403, "another host")


def test_the_key_in_the_address_becomes_a_cookie_that_pages_cannot_read(dashboard):
    path = urlsplit(dashboard.address)
    status, headers, _ = ask(dashboard, f"{path.path}?{path.query}")
    assert (status, headers["Location"]) == (303, "/")
    assert headers["Set-Cookie"] == f"{dashboard.cookie}={dashboard.key}; HttpOnly; SameSite=Strict; Path=/"
    status, headers, text = ask(dashboard, "/", key=dashboard.key)
    assert (status, headers["Cache-Control"], headers["X-Frame-Options"]) == (200, "no-store", "DENY")
    assert headers["Access-Control-Allow-Origin"] is None
    assert dashboard.key not in text
    assert [ask(dashboard, "/", key=dashboard.key, method=method)[0] for method in ("POST", "PUT", "DELETE")] == [
        501
    ] * 3


def test_the_page_has_every_branch(dashboard):
    status, _, text = ask(dashboard, "/", key=dashboard.key)
    assert status == 200
    assert "<script>alert" not in text
    found = {one["name"]: one for one in Outline(text).data["branches"]}
    assert set(found) == {"main", "exp/a", HOSTILE}
    assert 0.8 < found["main"]["strict_success_rate"] == found["main"]["success_rate"] <= 1
    assert found["main"]["author"] == "Ada Example"


def test_branches_are_compared_as_they_are_now(dashboard, root):
    path = f"/compare?name=main&name={quote(HOSTILE)}&name=exp/a"
    status, _, text = ask(dashboard, path, key=dashboard.key)
    assert status == 200
    assert "<script>alert" not in text
    assert [ask(dashboard, f"/compare{query}", key=dashboard.key)[0] for query in ("", "?name=gone", "?name=")] == [
        400,
        404,
        400,
    ]
    git(root, "branch", "gone", "main")
    assert ask(dashboard, "/compare?name=main&name=gone", key=dashboard.key)[0] == 200


def test_what_is_no_repository_and_a_port_that_is_taken_are_refused(tmp_path, dashboard, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.chdir(tmp_path)
    ran = posttrain("dashboard")
    assert (ran.exit_code, "not a git repository" in ran.stderr) == (78, True)
    with pytest.raises(ConfigurationError, match="cannot be had"):
        Dashboard(dashboard.root, dashboard.server_port)
