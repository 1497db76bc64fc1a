import pytest

from posttrain.worlds.lookups.gold import GoldCall, gold_of
from posttrain.worlds.lookups.matching import Decision, fits, holds, match_calls, read
from posttrain.worlds.made_calls import MadeCall, calls_made
from tests.worlds.lookups.play import ERROR, INFO, OK, PRICE, call, played, result, say, task


def made(name: str, arguments: object) -> MadeCall:
    return MadeCall(2, name, arguments, OK)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "accepted"),
    [
        ({"code": "00700.HK"}, True),  # days may be left out: None is among its values
        ({"code": "0700.hk ", "days": 5}, True),  # letters' case and spaces around do not matter
        ({"code": "00700.HK", "days": "5"}, True),  # a tool takes a number in quotes, so does the gold
        ({"code": "00700.HK", "days": 6}, False),
        ({"code": "600519.SH"}, False),
        ({"days": 5}, False),  # code may not be left out
        ({"code": "00700.HK", "extra": 1}, False),
        (None, False),
    ],
)
def test_arguments_fit_where_each_has_an_accepted_value(arguments, accepted):
    assert fits(made("get_hk_realtime_quote", arguments), PRICE) is accepted


def test_true_is_not_one():
    gold = GoldCall("quote", {"adjusted": (1,)})
    assert not fits(made("quote", {"adjusted": True}), gold)
    assert fits(made("quote", {"adjusted": 1.0}), gold)


def test_a_list_fits_item_by_item():
    gold = GoldCall("compare", {"codes": (["A.SH", "B.SH"],)})
    assert fits(made("compare", {"codes": ["a.sh", "b.sh"]}), gold)
    assert not fits(made("compare", {"codes": ["a.sh"]}), gold)


def test_every_message_takes_one_decision():
    messages = [call(), say("ASK: market"), say(), say("It rose."), say("")]
    assert read(played(*messages), task(PRICE)).decisions == [
        Decision.CALL,
        Decision.ASK,
        Decision.ANSWER,
        Decision.NOTHING,
        Decision.NOTHING,
    ]


def test_an_answer_before_a_later_call_is_not_the_final_one():
    assert read(played(say(), call()), task(PRICE)).answer is None
    assert read(played(), task(PRICE)).answer is None


def test_a_gold_call_is_matched_once():
    calls = calls_made(played(call(), result(), call(), result(), say()))
    assert match_calls(calls, gold_of(task(PRICE))) == [0, None]


def test_an_answer_is_held_only_by_a_call_that_came_back_without_error():
    gold = gold_of(task(PRICE, INFO))
    right = [call(), result(), call("get_hk_company_info"), result()]
    assert holds(calls_made(played(*right)), gold)
    assert not holds(calls_made(played(*right[:3], result(ERROR))), gold)
    assert not holds(calls_made(played(*right[:3])), gold)
