"""The comparison's page in a real browser without a network: it asks for nothing, and everything on
it can be used, by keyboard too."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.branches import Branch, make_repository
from posttrain.report.comparison.page import comparison_page
from posttrain.report.comparison.runs import read_runs
from posttrain.report.comparison.settings import compare_settings
from tests.real.browser import Page, asked_for, complaints, find_browser, opened_offline

pytestmark = [
    pytest.mark.needs_browser,
    pytest.mark.xdist_group("comparison_page"),
    pytest.mark.skipif(find_browser() is None, reason="no Chromium is installed (`apt-get install chromium`)"),
]
HOSTILE = 'exp/"><img/src=x/onerror=document.title="pwned">'
FIRST_CELLS = "[...document.querySelectorAll('#settings tbody')].map((body) => body.rows[0].cells[0].textContent)"


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    seeds = (1, 2, 3)
    branches = [
        Branch("main", success=0.8),
        *(Branch(f"main-seed{seed}", seed, 0.8) for seed in seeds[1:]),
        *(Branch(f"exp/better-seed{seed}", seed, 0.95, {"train_sft.lr": 0.004}) for seed in seeds),
        *(Branch(f"exp/worse-seed{seed}", seed, 0.6, {"agent.max_turns": 7}) for seed in seeds),
        Branch(HOSTILE, 1, 0.8, {"reward.extra": "</script><script>document.title='pwned'</script>"}),
    ]
    root = make_repository(tmp_path_factory.mktemp("git") / "repository", branches)
    page = tmp_path_factory.mktemp("page") / "comparison.html"
    page.write_text(comparison_page(compare_settings(read_runs(root, [branch.name for branch in branches]))))
    return page


@pytest.fixture(scope="module")
def page(file, tmp_path_factory) -> Iterator[Page]:
    home = tmp_path_factory.mktemp("browser")
    with opened_offline(file, home, drawn="document.querySelectorAll('.chart canvas').length > 10") as page:
        yield page


def test_it_asks_for_nothing_and_complains_of_nothing(page, file):
    page.run("1")
    assert asked_for(page) == [file.as_uri()]
    assert complaints(page) == []
    assert page.run("document.title") != "pwned"
    assert page.run("document.querySelector('img')") is None


def test_a_click_on_a_column_sorts_the_table_and_a_second_turns_it_around(page):
    names = page.run(FIRST_CELLS)
    assert names[0] == "main"
    click = "document.querySelectorAll('#settings th button')[3].click()"  # by success
    page.run(click)
    down = page.run(FIRST_CELLS)
    assert (down[0], down[-1]) == ("exp/better", "exp/worse")
    page.run(click)
    assert page.run(FIRST_CELLS) == down[::-1]
    assert page.run("document.querySelectorAll('#settings th')[3].getAttribute('aria-sort')") == "ascending"


def test_a_setting_unfolds_into_its_seeds(page):
    shown = "[...document.querySelectorAll('[data-setting=\"1\"] .run')].filter((row) => !row.hidden).length"
    click = "document.querySelector('[data-setting=\"1\"] .fold').click()"
    assert page.run(shown) == 0
    page.run(click)
    assert page.run(shown) == 3
    assert "seed 2" in page.run("document.querySelector('[data-setting=\"1\"]').innerText")
    page.run(click)
    assert page.run(shown) == 0


def test_curves_are_read_by_keyboard_and_a_setting_can_be_left_out(page):
    page.run("document.querySelector('.chart').focus()")
    told = "document.querySelector('.chart .at').innerText"
    steps = []
    for _ in range(5):
        page.press("ArrowRight")
        steps.append(int(page.run(told).split("\n")[0].removeprefix("step ")))
    assert steps == sorted(set(steps))  # each press goes on to the next step that the chart has
    assert "exp/better" in page.run(told)
    page.run("document.querySelectorAll('#legend input')[1].click()")
    page.run("document.querySelector('.chart').focus()")
    page.press("ArrowRight")
    assert "exp/better" not in page.run(told)
    assert "exp/worse" in page.run(told)
    page.run("document.querySelectorAll('#legend input')[1].click()")


def test_two_conversations_open_beside_each_other_with_the_first_difference_marked(page):
    page.run("document.querySelector('#pairs details').open = true")
    page.wait_for("!!document.querySelector('#pairs .message.diverges')", "the conversations")
    pair = page.run("document.querySelector('#pairs .pair').innerText")
    assert "first difference" in pair
    assert "ANSWER: 1" in pair


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
def test_it_fits_a_phone_and_a_desk_in_both_colour_schemes(page, scheme, width, tmp_path):
    page.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    page.send("Emulation.setDeviceMetricsOverride", width=width, height=1600, deviceScaleFactor=1, mobile=width < 500)
    assert page.run("document.documentElement.scrollWidth") <= width
    curve, place = (f"document.querySelector('{name}').clientWidth" for name in (".chart canvas", ".chart"))
    page.wait_for(f"Math.abs({curve} - {place}) < 80", "the curves in this width")
    red, green, blue = page.run("getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g).map(Number)")
    assert (red + green + blue > 600) is (scheme == "light")
    page.screenshot(tmp_path / f"{scheme}-{width}.png")
    assert (tmp_path / f"{scheme}-{width}.png").stat().st_size > 20_000
