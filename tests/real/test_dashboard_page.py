"""The dashboard in a real browser: it lists and compares."""

import threading
from urllib.parse import urlsplit

import pytest

from benchmarks.branches import Branch, make_repository
from posttrain.pipeline.git import git
from posttrain.report.comparison.dashboard import Dashboard
from tests.real.browser import asked_for, browsing, complaints, find_browser

pytestmark = [
    pytest.mark.needs_browser,
    pytest.mark.skipif(find_browser() is None, reason="no Chromium is installed (`apt-get install chromium`)"),
]


def test_the_dashboard_lists_and_compares_branches(tmp_path):
    branches = [Branch("main", success=0.8), Branch("exp/a", 1, 0.9, {"train_sft.lr": 0.004}), Branch("exp/b", 2, 0.7)]
    root = make_repository(tmp_path / "repository", branches)
    (tmp_path / "browser").mkdir()
    with Dashboard(root) as server, browsing(tmp_path / "browser") as page:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for domain in ("Network", "Runtime", "Log"):
            page.send(f"{domain}.enable")
        page.open(server.address)
        page.wait_for("document.querySelectorAll('#branches tbody tr').length == 3", "the branches")
        assert page.run("location.pathname + location.search") == "/"  # the key is not left in the address
        assert page.run("document.querySelector('#baseline').value") == "main"
        git(root, "branch", "exp/c", "main")
        page.open(server.address)
        page.wait_for("document.querySelectorAll('#branches tbody tr').length == 4", "the new branch")
        page.screenshot(tmp_path / "dashboard.png")
        page.run("document.querySelector('[aria-label=\"compare exp/a\"]').click()")
        page.run("document.querySelector('#compare button').click()")
        page.wait_for("location.pathname == '/compare' && document.querySelectorAll('canvas').length > 10", "the page")
        assert page.run("document.title") == "exp/a against main"
        assert [event for event in complaints(page) if "favicon" not in str(event)] == []
        assert {urlsplit(url).netloc for url in asked_for(page)} == {f"127.0.0.1:{server.server_port}"}
        server.shutdown()
