"""Tests of the dashboard's server: closed without the key, and new when something moves."""

import http.client
import json
import shutil
import threading
from urllib.parse import quote, urlsplit

import pytest
import yaml

from benchmarks.branches import Branch, make_repository
from posttrain.pipeline.git import git
from posttrain.report.comparison.branch_list import list_branches
from posttrain.report.comparison.dashboard import Dashboard
from posttrain.report.comparison.live import live_trainings
from posttrain.runtime.exits import ConfigurationError
from tests.conftest import REPOSITORY
from tests.console import posttrain

KNOBS = yaml.safe_load((REPOSITORY / "params.yaml").read_text(encoding="utf-8"))

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


@pytest.mark.parametrize("path", ["/", "/state.json", "/compare?name=main", "/nowhere"])
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


def test_the_state_has_every_branch(dashboard):
    status, _, text = ask(dashboard, "/state.json", key=dashboard.key)
    assert status == 200
    found = {one["name"]: one for one in json.loads(text)["branches"]}
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


def test_the_state_follows_branches_and_trainings(dashboard, root):
    git(root, "branch", "another", "main")
    copy = root / ".posttrain" / "frozen" / "train_policy"
    (copy / "reports" / "train_policy").mkdir(parents=True)
    (copy / "params.yaml").write_text(git(root, "show", "exp/a:params.yaml") + "\n")
    (copy / "reports" / "train_policy" / "metrics.jsonl").write_text('{"step": 1, "reward_mean": 0.5}\n')
    state = json.loads(ask(dashboard, "/state.json", key=dashboard.key)[2])
    assert "another" in {branch["name"] for branch in state["branches"]}
    [live] = state["live"]
    assert (live["branches"], live["source"], live["step"]) == (["exp/a"], "policy", 1)
    assert live["max_steps"] == KNOBS["train_policy"]["algorithm"]["max_steps"]
    assert (live["steps"], live["curves"]) == ([1], {"reward_mean": [0.5]})


def test_a_training_whose_knobs_are_no_branchs_and_whose_last_line_is_half_written_is_shown(root):
    copy = root / ".posttrain" / "snapshots" / "train_sft-0123-1"
    (copy / "reports" / "train_sft").mkdir(parents=True)
    shutil.copy(REPOSITORY / "params.yaml", copy / "params.yaml")
    max_steps = KNOBS["train_sft"]["max_steps"]
    (copy / "reports" / "train_sft" / "metrics.jsonl").write_text('{"step": 1, "loss": 2}\n{"step": 2, "lo')
    [live] = live_trainings(root, ["main"])
    assert (live.branches, live.source, live.step, live.max_steps) == ([], "SFT", 1, max_steps)
    (copy / "params.yaml").write_text("seed: [")
    assert live_trainings(root, ["main"])[0].max_steps == 0


def test_two_hundred_branches_are_listed(tmp_path):
    root = make_repository(tmp_path / "git", [Branch("main")])
    for index in range(200):
        git(root, "branch", f"exp/{index}", "main")
    assert len({one.name for one in list_branches(root) if one.success_rate is not None}) == 201


def test_what_is_no_repository_and_a_port_that_is_taken_are_refused(tmp_path, dashboard, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.chdir(tmp_path)
    ran = posttrain("dashboard")
    assert (ran.exit_code, "not a git repository" in ran.stderr) == (78, True)
    with pytest.raises(ConfigurationError, match="cannot be had"):
        Dashboard(dashboard.root, dashboard.server_port)
