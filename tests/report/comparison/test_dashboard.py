"""Tests of the dashboard: its server is closed without the key, and its picture says what
`posttrain compare` says."""

import html
import http.client
import json
import re
from urllib.parse import quote, urlsplit

import pytest

from benchmarks.branches import HERE, Branch, make_repository
from posttrain.pipeline.git import git
from posttrain.report.comparison.branches import MAX_COMPARED, branches_page, local_branches
from posttrain.report.comparison.dashboard import Dashboard
from posttrain.report.table import percent, percent_range, points
from posttrain.runtime.exits import ConfigurationError
from tests.console import posttrain
from tests.loopback import serving
from tests.report.outline import Outline

HOSTILE = "exp/<script>alert(1)</script>\u202e\u2028\x85&\"'"
VISIBLE = "exp/<script>alert(1)</script>⟨U+202E⟩⟨U+2028⟩⟨U+0085⟩&\"'"
EVALUATION, TASKS, CURVE = (
    f"reports/{name}" for name in ("evaluate/policy.json", "evaluate/policy.tasks.jsonl", "train_policy/metrics.jsonl")
)


@pytest.fixture
def root(tmp_path):
    branches = [
        Branch("main"),
        Branch("exp/a", knobs={"train_sft.lr": 0.004}),
        Branch(HOSTILE, knobs={"agent.max_turns": 7}),
    ]
    return make_repository(tmp_path / "repository", branches)


@pytest.fixture
def dashboard(root):
    with serving(Dashboard(root)) as server:
        yield server


def ask(server, path, *, key="", host="", method="GET"):
    """Status, headers and text."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
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
        405
    ] * 3


def test_the_page_has_every_branch(dashboard):
    status, _, text = ask(dashboard, "/", key=dashboard.key)
    assert status == 200
    assert "<script>alert" not in text
    found = {one["name"]: one for one in Outline(text).data["branches"]}
    assert {name: one["shown"] for name, one in found.items()} == {"main": "main", "exp/a": "exp/a", HOSTILE: VISIBLE}
    assert "<code>posttrain debug --ui</code>" in text
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
        Dashboard(dashboard.root, dashboard.port)


def page_of(root, baseline=""):
    return branches_page(root, local_branches(root), baseline)


def rows_of(page):
    """HTML and text of each row, by the name that is shown."""
    rows = page.partition('<ul id="rows">')[2].partition("</ul>")[0].split("<li>")[1:]
    names = [html.unescape(re.search(r"<a [^>]*>(.*?)</a>", row)[1]) for row in rows]
    texts = [html.unescape(re.sub(r"<[^>]*>", " ", row)) for row in rows]
    return dict(zip(names, zip(rows, texts, strict=True), strict=True))


def test_the_picture_has_the_numbers_and_verdicts_of_a_comparison_of_all(tmp_path, monkeypatch):
    knobs = {"train_sft.lr": 0.004, "agent.max_turns": 7, "seed_of_nothing": 1, "world.a": 2, "world.b": 3}
    branches = [
        *(Branch(f"main{end}", seed, 0.8) for seed, end in ((1, ""), (2, "-seed2"), (3, "-seed3"))),
        *(Branch(f"exp/up-seed{seed}", seed, 0.95, knobs) for seed in (1, 2, 3)),
        *(Branch(f"exp/down-seed{seed}", seed, 0.5, {"train_sft.lr": 0.02}) for seed in (1, 2, 3)),
        Branch("exp/once", 1, 0.95, {"train_sft.lr": 0.005}),
    ]
    root = make_repository(tmp_path / "git", branches)
    monkeypatch.chdir(root)
    names = ["main", *(branch.name for branch in branches[1:])]
    assert posttrain("compare", *names, "--json", str(tmp_path / "all.json")).exit_code == 0
    settings = {one["name"]: one for one in json.loads((tmp_path / "all.json").read_text())["settings"]}
    rows = rows_of(page := page_of(root))
    others = sorted({*settings} - {"main"}, key=lambda name: -settings[name]["strict_success"]["mean"])
    assert list(rows) == ["main", *others]
    ticks = [int(tick) / 100 for tick in re.findall(r">(\d+) %</text>", page)]
    for name, (row, text) in rows.items():
        success, difference = settings[name]["strict_success"], settings[name]["difference"]
        assert percent(success["mean"]) in text
        assert percent_range(success["low"], success["high"]) in text
        ends = re.search(r'"mark" x1="(.*?)%" x2="(.*?)%"', row)
        dot = re.search(r'"mark" cx="(.*?)%"', row)
        drawn = [ticks[0] + (ticks[-1] - ticks[0]) * float(place) / 100 for place in (*ends.groups(), dot[1])]
        assert drawn == pytest.approx([success["low"], success["high"], success["mean"]], abs=1e-4)
        assert difference is None or difference["verdict"] in text
        assert difference is None or points(difference["estimate"], difference["low"], difference["high"]) in text
    words = {name: settings[name]["difference"]["word"] for name in ("exp/up", "exp/down", "exp/once")}
    assert words == {"exp/up": "better", "exp/down": "worse", "exp/once": "needs more"}
    assert "no difference shown: needs" in rows["exp/once"][1]
    assert "+ 2 more" in rows["exp/up"][1]
    assert rows["exp/up"][0].count("<code>") == 3
    assert rows["exp/once"][0].count('class="curve"') == 1
    listed = {one["name"]: one["verdict"] for one in Outline(page).data["branches"]}
    assert (listed["exp/up-seed2"], listed["main-seed3"]) == ("better", "baseline")


def test_a_branch_without_figures_says_why_and_is_never_drawn_as_nought(tmp_path):
    lines = [json.loads(line) for line in (HERE / TASKS).read_text().splitlines()]
    others = "\n".join(json.dumps(line | {"task_id": f"other {line['task_id']}"}, sort_keys=True) for line in lines)
    reasons = {
        "exp/waits": ({EVALUATION: None, TASKS: None}, f"no strict success: no {EVALUATION}; no {TASKS}"),
        "exp/broken": ({EVALUATION: "{}", TASKS: "{"}, f"{EVALUATION} cannot be read: it has another schema"),
        "exp/others": ({TASKS: others}, "no tasks are common to all runs"),
        "exp/empty": (dict.fromkeys(["params.yaml", "dvc.lock", EVALUATION, TASKS, CURVE]), f"no {EVALUATION}"),
    }
    branches = [
        Branch(name, knobs={"train_sft.lr": at}, files=files)
        for at, (name, (files, _)) in enumerate(reasons.items(), 1)
    ]
    root = make_repository(tmp_path / "git", [Branch("main"), *branches])
    rows = rows_of(page := page_of(root))
    for name, (_, reason) in reasons.items():
        row, text = rows[name]
        assert "<circle" not in row
        assert (reason in text, "not comparable" in text, " 0.0 %" in text) == (True, True, False)
    assert "<code>" not in rows["exp/empty"][0]
    assert "Fine-tuning: loss: training rows: " in rows["exp/empty"][1]  # the curve that it has
    assert "strict success: 2" not in rows["exp/waits"][1]  # the title of most rows' curves stands above
    listed = {one["name"]: one for one in Outline(page).data["branches"]}
    assert listed["exp/waits"]["strict_success_rate"] is None
    assert f"no {TASKS}" in listed["exp/waits"]["verdict"]

    rows = rows_of(page_of(root, "exp/waits"))  # a baseline without results: the others have no verdict, but their dots
    assert "<circle" in rows["main"][0]
    assert "of-baseline" not in rows["main"][0]
    assert "the baseline has no results" in rows["main"][1]


def test_a_hostile_name_is_visible_and_its_link_leads_to_it(dashboard):
    _, _, page = ask(dashboard, "/", key=dashboard.key)
    row, text = rows_of(page)[VISIBLE]
    assert VISIBLE in text
    assert not re.search("[\u202e\u2028\x85]", row)
    link = html.unescape(re.search(r'href="(.*?)"', row)[1])
    assert link.isascii()
    status, _, compared = ask(dashboard, link, key=dashboard.key)
    assert (status, "<script>alert" in compared) == (200, False)
    assert [ask(dashboard, f"/?baseline={quote(name)}", key=dashboard.key)[0] for name in (HOSTILE, "gone")] == [
        200,
        404,
    ]


def test_the_picture_is_new_when_a_branch_moves_and_holds_as_many_as_a_comparison(root):
    before = page_of(root)
    assert page_of(root) is before  # no object is read again
    many = "".join(f"create refs/heads/old/{index} main\n" for index in range(MAX_COMPARED))
    git(root, "update-ref", "--stdin", text=many)
    page = page_of(root)
    assert len(rows_of(page)) <= MAX_COMPARED
    assert "3 older branches stand in the table alone" in page
    assert len(Outline(page).data["branches"]) == MAX_COMPARED + 3


def test_a_repository_without_a_commit_has_no_picture(tmp_path):
    assert '<ul id="rows">' not in page_of(make_repository(tmp_path / "git", []))
