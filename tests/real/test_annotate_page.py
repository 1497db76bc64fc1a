"""The annotation page in a real browser, by its keyboard alone."""

import json
import subprocess
import sys

import pytest

from posttrain.data.annotations import read_annotations
from posttrain.data.preferences import Pair, write_pairs
from posttrain.evals.agreement import krippendorffs_alpha
from tests.debug.test_annotation import episode
from tests.real.browser import asked_for, browsing, complaints, find_browser
from tests.real.test_debug_page import press, wait
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.needs_browser,
    pytest.mark.xdist_group("debug_page"),
    pytest.mark.skipif(find_browser() is None, reason="no Chromium is installed (`apt-get install chromium`)"),
]
NUM_PAIRS = 60


def started(folder):
    """`posttrain annotate` in a folder, and its address."""
    command = [sys.executable, "-c", "from posttrain.cli.main import app; app()", "annotate"]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
    return process, process.stdout.readline().split()[-1]


def judge(page, who, keys):
    """Press a key for each item that is shown; the figures at the end."""
    wait(page, "document.querySelectorAll('#actions button').length > 3")
    press(page, "n")
    wait(page, "document.activeElement.id == 'who'")
    page.type(who)
    press(page, "Enter")
    wait(page, f"document.querySelector('#figures').textContent.includes(' of {NUM_PAIRS} by {who}')")
    for number, key in enumerate(keys):
        before = page.run("document.querySelector('#figures').textContent")
        assert page.run("document.querySelectorAll('#episodes h2').length") == 2, number
        press(page, key)
        wait(page, f"document.querySelector('#figures').textContent != {json.dumps(before)}")
    return page.run("document.querySelector('#figures').textContent")


def test_fifty_judgements_of_two_people_with_a_kill_between(tmp_path):
    (tmp_path / "data/preferences").mkdir(parents=True)
    made = [Pair(episode(number, "right"), episode(number, "wrong")) for number in range(NUM_PAIRS)]
    write_pairs(tmp_path / "data/preferences/pairs.parquet", made)
    file = tmp_path / "data/feedback/annotations.parquet"
    process, address = started(tmp_path)
    with browsing(tmp_path / "browser") as page:
        for domain in ("Network", "Runtime", "Log"):
            page.send(f"{domain}.enable")
        page.send("Emulation.setFocusEmulationEnabled", enabled=True)
        page.open(address)
        judge(page, "ann", "ab" * 12 + "t")
        process.kill()
        process.wait()
        assert len(read_annotations(file)) == 25  # none is lost
        press(page, "a")
        wait(page, "document.querySelector('#said').textContent.includes('does not answer')")
        process, address = started(tmp_path)
        page.open(address)
        figures = judge(page, "bob", "a" * 25)
        rows = read_annotations(file)
        assert [sum(row["who"] == who for row in rows) for who in ("ann", "bob")] == [25, 25]
        units = {}
        for row in rows:
            units.setdefault(row["item"], {})[row["who"]] = row["winner"]
        alpha = krippendorffs_alpha(list(units.values()))
        assert (f"alpha {alpha:.2f}" if alpha is not None else "by bob") in figures
        assert {len(unit) for unit in units.values()} == {1, 2}
        press(page, "c")
        wait(page, "document.activeElement.id == 'comment'")
        page.type("not sure")
        press(page, "Escape", "b")
        wait_until(lambda: len(read_annotations(file)) == 51, what="the judgement")
        assert read_annotations(file)[-1]["comment"] == "not sure"
        shot = page.send("Page.captureScreenshot")["data"]
        assert len(shot) > 10_000
        assert all(url.startswith("http://127.0.0.1:") for url in asked_for(page))
        assert [one for one in complaints(page) if "ERR_CONNECTION_REFUSED" not in json.dumps(one)] == []
    process.terminate()
    process.wait()
