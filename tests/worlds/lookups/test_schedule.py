"""A task's identity: what a world gains leaves the tasks that do without it as they were."""

import pytest

from posttrain.worlds.stocks.domain import StocksDomain
from posttrain.worlds.tools import tool_from
from posttrain.worlds.toy.domain import ToyDomain
from tests.worlds_of import stocks_params, toy_params

NEW = "get_weather"


def weather(code: str) -> str:
    """The weather where a listing is traded."""
    return "fair"


TOOL = tool_from(weather, name=NEW, is_instant=True, side_effect="none")


def stocks():
    return StocksDomain(stocks_params(max_difficulty=3))


def toy():
    return ToyDomain(toy_params(max_difficulty=3))


@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize(("make", "count"), [(stocks, 60), (toy, 240)])
def test_a_tool_that_is_added_leaves_the_tasks_that_do_not_offer_it_as_they_were(make, count, is_first):
    """The toy offers all its tools but in the tasks of retrieval."""
    domain, grown = make(), make()
    grown.tools = {NEW: TOOL, **grown.tools} if is_first else {**grown.tools, NEW: TOOL}
    before, after = domain.tasks("rl", count), grown.tasks("rl", count)
    unchanged = [(old, new) for old, new in zip(before, after, strict=True) if NEW not in new.tools]
    assert len(unchanged) > count / 16
    assert len(unchanged) < count, "or nothing was added"
    assert all(old == new for old, new in unchanged)
    for old, new in zip(before, after, strict=True):
        assert (old.messages, old.goal, old.entities) == (new.messages, new.goal, new.entities)
        assert (old.task_id != new.task_id) == (NEW in new.tools)
