import pytest

from posttrain.evals.failures import Failure, failure_of
from posttrain.types import GoldCall, StopReason
from tests.rewards.play import ERROR, INFO, PRICE, call, played, result, say, task, user

RIGHT = [call(), result()]
WRONG_MARKET = [call("get_realtime_quote"), result()]
ASK = [say("ASK: market"), user()]


def test_a_success_has_no_failure_class_also_with_a_detour():
    assert failure_of(played(*WRONG_MARKET, *RIGHT, say()), task(PRICE)) is None


@pytest.mark.parametrize(
    ("messages", "failure"),
    [
        ([*WRONG_MARKET, say()], Failure.WRONG_MARKET),
        ([call("get_realtime_quote", reasoning="market: HK"), result(), say()], Failure.MARKET_FLIP),
        ([call("get_realtime_quote", reasoning="market: A"), result(), say()], Failure.WRONG_MARKET),
        ([*ASK, *ASK, *WRONG_MARKET, say()], Failure.REPEATED_CONFIRMATION),
        ([call(arguments='{"code"'), result(ERROR), say()], Failure.BAD_JSON),
        ([call("get_hk_macd"), result(), say()], Failure.WRONG_TOOL),
        ([call("get_stock_price"), result(ERROR), say()], Failure.WRONG_TOOL),
        ([say()], Failure.WRONG_TOOL),
        ([call(arguments='{"code":"600519.SH"}'), result(ERROR), say()], Failure.BAD_ARGUMENTS),
        ([*RIGHT, say("It went up.")], Failure.NO_ANSWER),
        ([*RIGHT, say("ANSWER: 38.02 HKD")], Failure.WRONG_VALUE),
        ([say("ANSWER: 38.02 HKD")], Failure.WRONG_VALUE),
        ([], Failure.NO_ANSWER),
    ],
)
def test_each_way_to_fail_has_its_class(messages, failure):
    assert failure_of(played(*messages), task(PRICE)) is failure


def test_a_limit_is_the_class_where_the_calls_were_right():
    assert failure_of(played(*RIGHT, *RIGHT, stop=StopReason.TURN_LIMIT), task(PRICE)) is Failure.TOO_MANY_TURNS
    assert failure_of(played(*WRONG_MARKET, stop=StopReason.TURN_LIMIT), task(PRICE)) is Failure.WRONG_MARKET


def test_a_mistake_that_was_put_right_is_not_the_cause():
    assert failure_of(played(*WRONG_MARKET, *RIGHT, say("ANSWER: 1 HKD")), task(PRICE)) is Failure.WRONG_VALUE


def test_a_plan_given_up_half_way_is_judged_by_its_end():
    assert failure_of(played(*RIGHT, say("ANSWER: 1 HKD")), task(PRICE, INFO)) is Failure.WRONG_VALUE


def test_taking_a_market_without_asking_for_it_is_a_wrong_market():
    assert failure_of(played(*RIGHT, say()), task(PRICE, asks="market")) is Failure.WRONG_MARKET


def test_in_a_task_of_both_markets_the_twin_of_a_missing_call_is_a_wrong_market():
    mainland = GoldCall("get_realtime_quote", {"code": ("600519.SH",)})
    both = task(PRICE, mainland)
    right = [call("get_realtime_quote", '{"code":"600519.SH"}'), result()]
    assert failure_of(played(*WRONG_MARKET, *right, say()), both) is Failure.WRONG_MARKET
    assert (
        failure_of(played(call(arguments='{"code":"00001.HK"}'), result(), *right, say()), both)
        is Failure.BAD_ARGUMENTS
    )


def test_any_call_where_none_is_needed_is_a_wrong_tool():
    assert failure_of(played(*RIGHT, say()), task()) is Failure.WRONG_TOOL
