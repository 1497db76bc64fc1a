"""The sides of a world: twin names of tools, and the side that a reasoning states."""

import pytest

from posttrain.worlds.stocks.codes import MARKETS_AS_SIDES
from posttrain.worlds.toy.domain import SHOPS_AS_SIDES


@pytest.mark.parametrize(
    ("reasoning", "market"),
    [
        ("market: HK", "hk"),
        ("市场: 港股", "hk"),
        ("market: A", "a"),
        ("市场：A股", "a"),
        ("market: A, no, market: HK", "hk"),
        ("HK is near", None),
        ("market: any", None),
    ],
)
def test_the_market_that_a_reasoning_settles_on_can_be_read(reasoning, market):
    assert MARKETS_AS_SIDES.stated_in(reasoning) == market


@pytest.mark.parametrize("sides", [MARKETS_AS_SIDES, SHOPS_AS_SIDES], ids=["stocks", "toy"])
def test_the_words_for_a_side_read_back_as_that_side(sides):
    assert {side for side, _ in sides.words} == {sides.home, sides.marked}
    for (side, _), words in sides.words.items():
        assert sides.stated_in(words) == side


def test_twins_differ_by_the_mark_alone():
    for home, marked in (("get_shelf", "get_south_shelf"), ("find_item", "find_south_item")):
        assert (SHOPS_AS_SIDES.twin(home), SHOPS_AS_SIDES.twin(marked)) == (marked, home)
        assert SHOPS_AS_SIDES.without_mark(marked) == SHOPS_AS_SIDES.without_mark(home) == home
        assert (SHOPS_AS_SIDES.side_of(home), SHOPS_AS_SIDES.side_of(marked)) == ("north", "south")
    assert MARKETS_AS_SIDES.side_of("get_hkd_rate") == "a", "the mark is a whole word of the name"
