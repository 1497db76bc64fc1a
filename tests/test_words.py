"""Words of the library: docstrings say what a thing is or does, names are the field's, and outside
of its own package nothing knows what the stock world is about."""

import re
from pathlib import Path

import pytest

from benchmarks.house import parsed, riddles, tracked

FOLDERS = ("posttrain", "stages", "flows")
KINDS = (".py", ".jinja", ".html", ".js", ".css")
NOT_OURS = ("posttrain/worlds/bfcl/", "posttrain/report/vendor/")  # the names of a benchmark's own functions
ITS_OWN = ("posttrain/worlds/stocks/", "posttrain/worlds/brokerage/")
# An underscore and a digit end a word too: `search_hk_stock` names a market.
WORDS = re.compile(
    r"(?<![a-z])(markets?|compan(y|ies)|[ah]-shares?|hong ?kong|hkd?|cny|stocks?|tickers?|bourses?)"
    r"(?![a-z])",
    re.IGNORECASE,
)
# Where worlds are listed, one is called `stocks` and has its package imported.
LISTED = {"posttrain/worlds/catalog.py"}
ITS_NAME = re.compile(r'"stocks"|posttrain\.worlds\.stocks\.')


def words_in(path: str, text: str) -> list[str]:
    """`path:line: word` of each that is not allowed there."""
    if path in LISTED:
        text = ITS_NAME.sub("", text)
    return [
        f"{path}:{number}: {found[0]}"
        for number, line in enumerate(text.splitlines(), 1)
        for found in WORDS.finditer(line)
    ]


def scanned(root: Path) -> dict[str, str]:
    files = {
        path.relative_to(root).as_posix(): path
        for folder in FOLDERS
        for path in (root / folder).rglob("*")
        if path.suffix in KINDS
    }
    return {
        name: path.read_text(encoding="utf-8")
        for name, path in files.items()
        if not name.startswith((*ITS_OWN, *NOT_OURS))
    }


def test_no_file_but_the_stock_worlds_speaks_of_markets(repository):
    texts = scanned(repository)
    assert texts.keys() > LISTED
    assert [found for name, text in texts.items() for found in words_in(name, text)] == []


@pytest.mark.parametrize(
    "line",
    ["another market", "Markets", "no company", "COMPANIES", "an A-share", "Hong Kong", "00700.HK", "search_hk_stock"],
)
def test_a_word_is_found_wherever_it_stands(line):
    assert words_in("posttrain/report/page.py", f"first\n{line}")
    assert words_in("posttrain/worlds/catalog.py", line)


@pytest.mark.parametrize("line", ["a share of the tasks", "accompany", "stockade", "a marketable skill"])
def test_another_word_is_none_of_them(line):
    assert words_in("posttrain/report/page.py", line) == []


def test_its_name_is_allowed_where_worlds_are_listed_and_nowhere_else():
    line = 'from posttrain.worlds.stocks.params import StocksParams  # "stocks"'
    assert words_in("posttrain/worlds/catalog.py", line) == []
    assert len(words_in("posttrain/config/params.py", line)) == 2


def test_no_docstring_begins_with_a_riddle():
    """`benchmarks.house.RIDDLES` has the openings that tell nothing without the second sentence."""
    assert list(riddles(parsed(tracked("posttrain", "stages", "flows")))) == []


# Names of this repository's own that the field's have replaced: `git log -S NAME` tells by which.
OLD_NAMES = re.compile(
    r"\b(NodeRuns|CallForm|PlayedGroup|HintedPolicy|Crediting|Rehearsal|LocalPool|SlurmPool|KubernetesPool|EngineLost"
    r"|held_side|shown_losses|recital|told_tools|spoken_alike|realise_anew|whole_run|named_files|off_grid|control_marks"
    r"|play_episodes|max_lost_frac|is_lost|with_expert|wanted_by)\b"
)


def test_no_name_that_was_replaced_comes_back():
    found = [
        f"{path}:{number}: {name[0]}"
        for path in tracked("posttrain", "stages", "flows", "benchmarks", "tests")
        if path != Path("tests/test_words.py")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        for name in OLD_NAMES.finditer(line)
    ]
    assert found == []
