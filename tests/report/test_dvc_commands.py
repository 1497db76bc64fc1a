"""DVC's own commands show the headline and the curves of a run, and their page needs no network."""

import csv
import hashlib
import json
import re
from pathlib import Path

import pytest
from dvc_render.vega import VegaRenderer

from tests.report.dvc_tree import REPOSITORY, dvc, make_tree
from tests.report.outline import Outline

# the files of the packages on npm
PUBLISHED = {
    "vega@5.33.1/build/vega.min.js": "463f3db6a40b20e9747b4ed38f37ed0add508838f9141b1cf8366784b07b30c8",
    "vega-lite@5.23.0/build/vega-lite.min.js": "58c27358e26f2d319cf62f45bc17a4c8362f08645001df2ec8d341eee4097c7f",
    "vega-embed@6.29.0/build/vega-embed.min.js": "12d02acfbe3ec59ef9a37dd4822a2e04e2961b5bbb671bbe661d2221715b99da",
}

pytestmark = pytest.mark.xdist_group("dvc commands")


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    return make_tree(tmp_path_factory.mktemp("tree"))


def values_of(page: str) -> dict[str, dict[str, int]]:
    """For each plot the number of its points by revision."""
    specs = re.findall(r"var spec = (\{.*\});\s+vegaEmbed\('#(\w+)', spec\)", page)
    points = {plot: json.loads(spec).get("data", {}).get("values", []) for spec, plot in specs}
    return {
        plot: {rev: sum(value["rev"] == rev for value in values) for rev in {value["rev"] for value in values}}
        for plot, values in points.items()
    }


def test_plots_show_draws_the_curves_of_the_run(tree):
    assert dvc(tree, "plots", "show") == f"{(tree / 'dvc_plots/index.html').as_uri()}\n"
    page = (tree / "dvc_plots" / "index.html").read_text(encoding="utf-8")
    num_points = {plot: counts for plot, counts in values_of(page).items() if counts}
    assert num_points == {
        "sft_loss": {"workspace": 40},
        "sft_dev_loss": {"workspace": 4},
        "dpo_loss": {"workspace": 20},
        "dpo_pair_accuracy": {"workspace": 20},
    }


def test_plots_diff_draws_the_curves_of_both_revisions_where_it_is_told(tree):
    dvc(tree, "plots", "diff", "HEAD", "--out", "elsewhere")
    page = (tree / "elsewhere" / "index.html").read_text(encoding="utf-8")
    grpo = ("reward", "reward_std", "zero_std", "all_bad", "all_good", "other")
    assert values_of(page) == {
        "sft_loss": {"HEAD": 40, "workspace": 40},
        "sft_dev_loss": {"HEAD": 4, "workspace": 4},
        **{f"grpo_{name}": {"HEAD": 30} for name in grpo},
        "dpo_loss": {"workspace": 20},
        "dpo_pair_accuracy": {"workspace": 20},
    }
    tags = Outline(page).tags
    assert not [attributes for tag, attributes in tags if tag == "link" or {"src", "href"} & set(attributes)]


def test_the_scripts_of_the_page_are_those_on_npm_in_the_majors_that_dvc_asks_for():
    template = (REPOSITORY / ".dvc" / "plots.html").read_text(encoding="utf-8")
    scripts = re.findall(r'<script data-from="([^"]+)">\n(.*?)\n</script>', template, re.DOTALL)
    # the blank line that ends each file is the one before </script>
    assert {name: hashlib.sha256(f"{text}\n".encode()).hexdigest() for name, text in scripts} == PUBLISHED
    majors = [name.partition(".")[0] for name in PUBLISHED]
    assert majors == re.findall(r"npm/([\w-]+@\d+)", VegaRenderer.SCRIPTS)


def test_metrics_show_and_diff_have_the_headline_and_nothing_else(tree):
    [row] = csv.DictReader(dvc(tree, "metrics", "show", "--md").replace(" ", "").splitlines()[::2], delimiter="|")
    numbers = json.loads((tree / "reports" / "headline.json").read_text())
    assert set(row) == {"", "Path", *(name for name, number in numbers.items() if number is not None)}
    assert row["policy_success"] == "0.8"
    diff = json.loads(dvc(tree, "metrics", "diff", "--json"))
    assert list(diff) == ["reports/headline.json"]
    changed = diff["reports/headline.json"]
    assert changed["policy_success"]["old"] == 0.9
    assert changed["policy_success"]["diff"] == pytest.approx(-0.1)
    assert changed["grpo_reward_std"]["new"] is None


def test_exp_show_has_the_headline_beside_knobs_and_code(tree):
    [header, *rows] = csv.reader(dvc(tree, "exp", "show", "--csv", "--drop", r".*[./]").splitlines())
    assert set(header) - set(json.loads((tree / "reports" / "headline.json").read_text())) == {
        "Experiment",
        "rev",
        "typ",
        "Created",
        "parent",
        "seed",
    }
    assert len(header) == 24
    assert [row[header.index("policy_success")] for row in rows] == ["0.8", "0.9"]
