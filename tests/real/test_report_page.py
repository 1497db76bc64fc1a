"""The report in a real browser without a network: its charts are drawn, and failed episodes are
filtered and opened."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from posttrain.report.page import read_reports, render_page
from tests.real.browser import Page, asked_for, complaints, find_browser, opened_offline
from tests.report.example import good_reports, task_record, write_reports

pytestmark = [
    pytest.mark.needs_browser,
    pytest.mark.xdist_group("report_page"),
    pytest.mark.skipif(find_browser() is None, reason="no Chromium is installed (`apt-get install chromium`)"),
]
HOSTILE = "</script><img src=x onerror=document.title='pwned'>"
SHOWN = "[...document.querySelectorAll('#episodes details')].filter((one) => !one.hidden)"


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    played = [
        task_record("t0", failure="wrong_market", wanted="12.30 HKD"),
        task_record("t1", failure="wrong_value", cell="timing_decision/a/en/2"),
        task_record("t2", failure="wrong_value", transcript=[{"role": "user", "content": HOSTILE}]),
        task_record("t3"),
    ]
    reports = {**good_reports(), "evaluate/policy.tasks.jsonl": played}
    folder = write_reports(tmp_path_factory.mktemp("report") / "reports", reports)
    page = folder / "index.html"
    page.write_text(render_page(read_reports(folder, {}), num_failures_shown=10), encoding="utf-8")
    return page


@pytest.fixture(scope="module")
def page(file, tmp_path_factory) -> Iterator[Page]:
    home = tmp_path_factory.mktemp("browser")
    with opened_offline(file, home, drawn="document.querySelectorAll('.chart canvas').length === 12") as page:
        yield page


def test_it_asks_for_nothing_and_complains_of_nothing(page, file):
    page.run("1")
    assert asked_for(page) == [file.as_uri()]
    assert complaints(page) == []
    assert page.run("document.title") == "Did the agent get better?"


def test_failed_episodes_are_filtered_by_class_and_cell(page):
    def choose(label: str, value: str) -> list[str]:
        page.run(
            f"(() => {{ const box = document.querySelector('#filters [aria-label={label}]'); box.value = '{value}'; "
            "box.dispatchEvent(new Event('change')); })()"
        )
        return page.run(f"{SHOWN}.map((one) => one.querySelector('.bad').textContent.trim())")

    assert choose("failure", "") == ["wrong value", "wrong value", "wrong market"]
    assert choose("failure", "wrong_value") == ["wrong value", "wrong value"]
    assert choose("cell", "timing_decision/a/en/2") == ["wrong value"]
    assert page.run("document.querySelector('#filters span').textContent") == " 1 of 3"
    choose("cell", "")
    assert choose("failure", "") == ["wrong value", "wrong value", "wrong market"]


def test_an_episode_opens_with_the_wanted_answer_beside_its_conversation(page):
    page.run(f"{SHOWN}[2].querySelector('summary').click()")
    page.wait_for(f"!!{SHOWN}[2].querySelector('.episode')", "the episode")
    text = page.run(f"{SHOWN}[2].innerText")
    assert "12.30 HKD" in text
    assert "Hong Kong, so the twin." in text
    page.run(f"{SHOWN}[1].querySelector('summary').click()")
    page.wait_for(f"!!{SHOWN}[1].querySelector('.episode')", "the hostile one")
    assert HOSTILE in page.run(f"{SHOWN}[1].innerText")
    assert page.run("document.querySelector('img')") is None
    assert page.run("document.title") != "pwned"


def test_a_curve_is_toggled_in_its_own_chart(page):
    first = "document.querySelector('#spread-charts .chart:nth-child(2)')"
    label = f"{first}.querySelectorAll('.legend input')"
    assert page.run(f"{label}.length") == 4
    before = page.run(f"{first}.querySelector('canvas').toDataURL()")
    page.run(f"{label}[0].click()")
    page.wait_for(f"!!({first}.querySelector('canvas').toDataURL() !== {before!r})", "another drawing")


def test_no_label_of_an_axis_is_cut_at_the_left(tmp_path):
    """A reward between -0.0125 and -0.0115 lost its sign, and one between 0.99901 and 0.99909 all
    that its ticks differ in."""
    reports = good_reports()
    lines = reports["train_policy/metrics.jsonl"]
    for at, line in enumerate(lines):
        line |= {"reward_mean": -0.0125 + 0.001 * at / len(lines), "length": 0.99901 + 0.00008 * at / len(lines)}
    folder = write_reports(tmp_path / "reports", reports)
    (folder / "index.html").write_text(render_page(read_reports(folder, {}), num_failures_shown=1), encoding="utf-8")
    drawn = "document.querySelectorAll('.chart canvas').length === 12"
    with opened_offline(folder / "index.html", tmp_path / "home", drawn=drawn) as page:
        page.run(
            """
            window.labels = {};
            const put = CanvasRenderingContext2D.prototype.fillText;
            CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
              const title = this.canvas.closest(".chart").querySelector("h3").textContent;
              const left = this.textAlign === "right" ? x - this.measureText(text).width : x;
              (labels[title] ??= []).push([text, left]);
              put.call(this, text, x, y);
            };
            document.querySelector("#smooth").click();
            """
        )
        labels = page.wait_for("Object.keys(labels).length === 12 && labels", "the charts drawn again")
        page.screenshot(tmp_path / "page.png")
    assert {text: left for drawn in labels.values() for text, left in drawn if left < 0} == {}
    assert any(text.startswith("-0.01") and len(text) == 7 for text, _ in labels["Reward"])
    ticks = [text for text, _ in labels["Tokens per episode"] if text.startswith("0.")]
    assert len(ticks) == len(set(ticks)) > 2
