"""The page of `dvc plots` in a real browser without a network: every curve is drawn, nothing is
asked for, nothing fails."""

import pytest

from tests.real.browser import asked_for, complaints, find_browser, opened_offline
from tests.report.dvc_tree import dvc, make_tree

pytestmark = [
    pytest.mark.needs_browser,
    pytest.mark.skipif(find_browser() is None, reason="no Chromium is installed (`apt-get install chromium`)"),
]
# of each plot the pixels that have a hue, where the axes are and not the legend
NUM_COLOURED = """[...document.querySelectorAll('canvas')].map((canvas) => {
  const {data} = canvas.getContext('2d').getImageData(0, 0, 330, canvas.height)
  let count = 0
  for (let at = 0; at < data.length; at += 4) {
    const colours = data.slice(at, at + 3)
    if (data[at + 3] && Math.max(...colours) - Math.min(...colours) > 60) count++
  }
  return count
})"""


def test_the_curves_of_two_revisions_are_drawn_without_a_network(tmp_path):
    tree = make_tree(tmp_path / "tree")
    dvc(tree, "plots", "diff", "HEAD", "--out", str(tmp_path / "page"))
    file = tmp_path / "page" / "index.html"
    drawn = "document.querySelectorAll('canvas').length === 10"
    with opened_offline(file, tmp_path / "browser", drawn=drawn) as page:
        assert min(page.run(NUM_COLOURED)) > 200
        menu = page.run("[...document.querySelectorAll('.vega-actions')[0].children].map((entry) => entry.textContent)")
        assert menu == ["Save as SVG", "Save as PNG"]
        assert [url for url in asked_for(page) if not url.startswith(("data:", "blob:"))] == [file.as_uri()]
        said = [event["params"] for event in page.events if event["method"] == "Runtime.consoleAPICalled"]
        assert [one for one in said if one["type"] == "error"] == []
        assert complaints(page) == []
        page.screenshot(tmp_path / "plots.png")
