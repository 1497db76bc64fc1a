"""The dashboard in a real browser: it draws, lists and compares."""

from urllib.parse import urlsplit

import pytest

from benchmarks.branches import Branch, make_repository
from posttrain.pipeline.git import git
from posttrain.report.comparison.dashboard import Dashboard
from tests.loopback import serving
from tests.real.browser import asked_for, browsing, complaints, find_browser

pytestmark = [
    pytest.mark.needs_browser,
    pytest.mark.skipif(find_browser() is None, reason="no Chromium is installed (`apt-get install chromium`)"),
]


def test_the_dashboard_lists_and_compares_branches(tmp_path):
    a, b = {"train_sft.lr": 0.004}, {"agent.max_turns": 7}
    branches = [Branch("main", success=0.8), Branch("exp/a", 1, 0.9, a), Branch("exp/b", 2, 0.7, b)]
    root = make_repository(tmp_path / "repository", branches)
    (tmp_path / "browser").mkdir()
    with serving(Dashboard(root)) as server, browsing(tmp_path / "browser") as page:
        for domain in ("Network", "Runtime", "Log"):
            page.send(f"{domain}.enable")
        page.open(server.address)
        page.wait_for("document.querySelectorAll('#branches tbody tr').length == 3", "the branches")
        assert page.run("location.pathname + location.search") == "/"  # the key is not left in the address
        assert page.run("document.querySelector('#baseline').value") == "main"
        data = "JSON.parse(document.getElementById('page-data').textContent)"
        low, middle, high = sorted(page.run(f"{data}.branches.map((one) => one.strict_success_rate)"))
        for width in (400, 1280):
            page.send("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
            assert page.run("document.documentElement.scrollWidth <= innerWidth")
            dots = page.run("[...document.querySelectorAll('circle.mark')].map((one) => one.getBoundingClientRect().x)")
            left, between, right = sorted(dots)
            assert (between - left) / (right - left) == pytest.approx((middle - low) / (high - low), abs=0.01)
        page.run("const chosen = document.getElementById('baseline'); chosen.value = 'exp/a'")
        page.run("chosen.dispatchEvent(new Event('change'))")
        page.wait_for("document.querySelector('#rows a')?.textContent == 'exp/a'", "the other baseline")
        git(root, "branch", "exp/c", "main")
        page.open(server.address)
        page.wait_for("document.querySelectorAll('#branches tbody tr').length == 4", "the new branch")
        page.screenshot(tmp_path / "dashboard.png")
        page.run("document.querySelector('[aria-label=\"compare exp/a\"]').click()")
        page.run("document.querySelector('#compare button').click()")
        page.wait_for("location.pathname == '/compare' && document.querySelectorAll('canvas').length > 10", "the page")
        assert page.run("document.title") == "exp/a against main"
        assert [event for event in complaints(page) if "favicon" not in str(event)] == []
        assert {urlsplit(url).netloc for url in asked_for(page)} == {f"127.0.0.1:{server.port}"}
