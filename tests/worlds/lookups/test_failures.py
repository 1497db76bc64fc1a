"""Each way to fail has its class, the first that holds, in its world's verdict."""

from dataclasses import replace

import pytest

from posttrain.types import StopReason, Task, Trajectory
from posttrain.worlds.lookups.gold import GoldCall
from posttrain.worlds.lookups.grade import failure_of, grade
from posttrain.worlds.lookups.matching import read
from posttrain.worlds.stocks.codes import MARKETS_AS_SIDES
from posttrain.worlds.toy.domain import SHOPS_AS_SIDES
from tests.worlds.lookups.play import ERROR, INFO, PRICE, call, played, result, say, task, user

RIGHT = [call(), result()]
WRONG_MARKET = [call("get_realtime_quote"), result()]
ASK = [say("ASK: market"), user()]


def class_of(trajectory: Trajectory, task: Task) -> str:
    outcome = grade(trajectory, task, sides=MARKETS_AS_SIDES, tools={})
    assert outcome.success or outcome.failure == failure_of(read(trajectory, task), MARKETS_AS_SIDES)
    return outcome.failure


def test_a_success_has_no_failure_class_also_with_a_detour():
    assert class_of(played(*WRONG_MARKET, *RIGHT, say()), task(PRICE)) == ""


@pytest.mark.parametrize(
    ("messages", "failure"),
    [
        ([*WRONG_MARKET, say()], "wrong_market"),
        ([call("get_realtime_quote", reasoning="market: HK"), result(), say()], "market_flip"),
        ([call("get_realtime_quote", reasoning="market: A"), result(), say()], "wrong_market"),
        ([*ASK, *ASK, *WRONG_MARKET, say()], "repeated_confirmation"),
        ([call(arguments='{"code"'), result(ERROR), say()], "bad_json"),
        ([call("get_hk_macd"), result(), say()], "wrong_tool"),
        ([call("get_stock_price"), result(ERROR), say()], "wrong_tool"),
        ([say()], "wrong_tool"),
        ([call(arguments='{"code":"600519.SH"}'), result(ERROR), say()], "bad_arguments"),
        ([*RIGHT, say("It went up.")], "no_answer"),
        ([*RIGHT, say("ANSWER: 38.02 HKD")], "wrong_value"),
        ([say("ANSWER: 38.02 HKD")], "wrong_value"),
        ([], "no_answer"),
    ],
)
def test_each_way_to_fail_has_its_class(messages, failure):
    assert class_of(played(*messages), task(PRICE)) == failure


def test_a_limit_is_the_class_where_the_calls_were_right():
    assert class_of(played(*RIGHT, *RIGHT, stop=StopReason.TURN_LIMIT), task(PRICE)) == "too_many_turns"
    assert class_of(played(*WRONG_MARKET, stop=StopReason.TURN_LIMIT), task(PRICE)) == "wrong_market"


def test_a_mistake_that_was_put_right_is_not_the_cause():
    assert class_of(played(*WRONG_MARKET, *RIGHT, say("ANSWER: 1 HKD")), task(PRICE)) == "wrong_value"


def test_a_plan_given_up_half_way_is_judged_by_its_end():
    assert class_of(played(*RIGHT, say("ANSWER: 1 HKD")), task(PRICE, INFO)) == "wrong_value"


def test_taking_a_market_without_asking_for_it_is_a_wrong_market():
    assert class_of(played(*RIGHT, say()), task(PRICE, asks="market")) == "wrong_market"


def test_in_a_task_of_both_markets_the_twin_of_a_missing_call_is_a_wrong_market():
    mainland = GoldCall("get_realtime_quote", {"code": ("600519.SH",)})
    both = task(PRICE, mainland)
    right = [call("get_realtime_quote", '{"code":"600519.SH"}'), result()]
    assert class_of(played(*WRONG_MARKET, *right, say()), both) == "wrong_market"
    assert class_of(played(call(arguments='{"code":"00001.HK"}'), result(), *right, say()), both) == "bad_arguments"


def test_any_call_where_none_is_needed_is_a_wrong_tool():
    assert class_of(played(*RIGHT, say()), task()) == "wrong_tool"


def test_the_classes_of_sides_bear_the_worlds_own_word_for_them():
    """The toy's marked side is the south shop, so a Hong Kong tool is of its home side: the same
    two mistakes, by other names."""
    south = task(GoldCall("get_south_shelf", {"code": ("700.S",)}))
    episodes = [
        played(call("get_shelf", '{"code":"700.S"}', reasoning=reasoning), result(ERROR), say())
        for reasoning in (None, "shop: south")
    ]
    south = replace(south, tools=("get_shelf", "get_south_shelf"))
    assert [failure_of(read(one, south), SHOPS_AS_SIDES) for one in episodes] == ["wrong_shop", "shop_flip"]
