"""Texts that an agent reads from the tools: schemas, quotes, errors."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from posttrain.worlds.stocks import indicators
from posttrain.worlds.stocks.bars import trading_days
from posttrain.worlds.stocks.codes import MARKETS_AS_SIDES
from posttrain.worlds.stocks.market import HKD_PER_CNY, Market, quote
from posttrain.worlds.stocks.toolset import stock_tools
from posttrain.worlds.tools import ToolError

twin = MARKETS_AS_SIDES.twin
GOLDEN = Path(__file__).parents[2] / "golden" / "stock_tools.json"
_NAMES = [tool["function"]["name"] for tool in json.loads(GOLDEN.read_text(encoding="utf-8"))]
A_TOOLS = _NAMES[: len(_NAMES) // 2]  # the rest are their twins


@pytest.fixture(scope="module")
def market() -> Market:
    return Market(7)


@pytest.fixture(scope="module")
def ask(market):
    """Call a tool as an agent does: name and arguments in, parsed JSON out."""
    tools = stock_tools(market)
    return lambda tool, /, **arguments: json.loads(tools[tool].call(json.dumps(arguments)))


@pytest.fixture(scope="module")
def dual(market):
    return next(company for company in market.companies if company.is_dual_listed)


def test_the_schemas_that_the_agent_reads_are_these(market):
    """Set UPDATE_GOLDEN=1 to write them anew, then read the difference."""
    schemas = json.dumps([tool.schema() for tool in stock_tools(market).values()], ensure_ascii=False, indent=1) + "\n"
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(schemas, encoding="utf-8")
    assert schemas == GOLDEN.read_text(encoding="utf-8")


def test_every_tool_has_a_hong_kong_twin_that_takes_the_same_arguments(market):
    tools = stock_tools(market)
    assert list(tools) == A_TOOLS + [twin(name) for name in A_TOOLS]
    for name in A_TOOLS:
        assert twin(twin(name)) == name
        assert list(tools[name].parameters["properties"]) == list(tools[twin(name)].parameters["properties"])
    assert (twin("search_stock"), twin("get_realtime_quote")) == ("search_hk_stock", "get_hk_realtime_quote")


def test_a_search_gives_the_code_on_the_market_asked_in_the_language_asked(ask, dual):
    assert ask("search_stock", name=dual.name_zh) == [{"code": dual.a.code, "name": dual.name_zh}]
    assert ask("search_hk_stock", name=dual.aliases[0]) == [{"code": dual.hk.code, "name": dual.name_zh}]
    assert ask("search_hk_stock", name=dual.name_en.lower()) == [{"code": dual.hk.code, "name": dual.name_en}]


def test_a_name_not_found_says_on_which_market(market, ask):
    company = next(company for company in market.companies if company.a is None)
    with pytest.raises(ToolError, match=rf"^no A-share company named '{company.name_zh}'$"):
        ask("search_stock", name=company.name_zh)
    with pytest.raises(ToolError, match=r"^no Hong Kong company named 'Nobody'$"):
        ask("search_hk_stock", name="Nobody")


@pytest.mark.parametrize("name", [name for name in A_TOOLS if name != "search_stock"])
def test_every_tool_refuses_the_other_markets_code_and_an_unlisted_one(ask, dual, name):
    with pytest.raises(ToolError, match="is a Hong Kong code; this tool takes A-share codes"):
        ask(name, code=dual.hk.code)
    with pytest.raises(ToolError, match="is an A-share code; this tool takes Hong Kong codes"):
        ask(twin(name), code=dual.a.code)
    with pytest.raises(ToolError, match=r"no A-share company has the code 609999\.SH"):
        ask(name, code="609999")


def test_a_quote_is_one_flat_object_in_this_order(ask, dual):
    answer = ask("get_hk_realtime_quote", code=dual.hk.code.removeprefix("0"))
    assert list(answer) == (
        "code name currency price change change_pct open high low prev_close volume turnover pe pb is_simulated".split()  # noqa: SIM905
    )
    assert (answer["code"], answer["name"], answer["currency"], answer["is_simulated"]) == (
        dual.hk.code,
        dual.name_zh,
        "HKD",
        True,
    )


def test_a_quote_is_the_last_bar_beside_the_one_before(market, ask, dual):
    answer, bars = ask("get_realtime_quote", code=dual.a.code), market.bars(dual.a.code)
    close, previous = int(bars.close_cents_T[-1]), int(bars.close_cents_T[-2])
    assert (answer["price"], answer["prev_close"]) == (close / 100, previous / 100)
    assert round(answer["change"] * 100) == close - previous
    assert answer["change_pct"] == round(100 * (close - previous) / previous, 2)
    assert answer["volume"] == bars.volume_T[-1]
    assert answer["low"] / 100 * answer["volume"] <= answer["turnover"] + 0.01
    assert answer["turnover"] <= answer["high"] / 100 * answer["volume"] + 0.01


def test_a_company_in_both_markets_has_two_prices_and_one_book_value(market, dual):
    a, hk = quote(market, dual.a.code), quote(market, dual.hk.code)
    assert a["price"] != hk["price"]
    # Book value = price / P/B, in CNY on both sides; P/B has two decimals, so it is known to within
    # half a hundredth of its own size.
    slack = 0.005 / min(a["pb"], hk["pb"]) + 0.01
    assert a["price"] / a["pb"] == pytest.approx(hk["price"] / HKD_PER_CNY / hk["pb"], rel=2 * slack)


def test_a_suspended_stock_shows_its_last_price_and_no_volume(market):
    suspended = next(
        listing.code
        for company in market.companies
        for listing in company.listings
        if market.bars(listing.code).dates_T[-1] != trading_days(listing.market)[-1]
    )
    answer = quote(market, suspended)
    prices = {answer[name] for name in ("price", "prev_close", "open", "high", "low")}
    assert prices == {market.bars(suspended).close_cents_T[-1] / 100}
    assert (answer["change"], answer["volume"], answer["turnover"]) == (0.0, 0, 0.0)


def test_candles_are_the_last_five_days_unless_asked_otherwise(market, ask, dual):
    answer, bars = ask("get_kline", code=dual.a.code), market.bars(dual.a.code)
    assert [bar["date"] for bar in answer["bars"]] == bars.dates_T[-5:].astype(str).tolist()
    assert answer["bars"][-1] == {
        "date": "2025-12-31",
        "open": bars.open_cents_T[-1] / 100,
        "high": bars.high_cents_T[-1] / 100,
        "low": bars.low_cents_T[-1] / 100,
        "close": bars.close_cents_T[-1] / 100,
        "volume": bars.volume_T[-1],
    }


def test_candles_from_a_date_begin_with_the_first_trading_day_on_or_after_it(market, ask, dual):
    # 2025-10-01 begins the National Day week; the mainland trades again on the 9th, Hong Kong on
    # the 2nd.
    start = {"start_date": "2025-10-01", "limit": 2}
    for tool, listing, first in (("get_kline", dual.a, "2025-10-09"), ("get_hk_kline", dual.hk, "2025-10-02")):
        dates = market.bars(listing.code).dates_T
        expected = dates[dates >= np.datetime64("2025-10-01")][:2].astype(str).tolist()
        assert expected[0] == first
        assert [bar["date"] for bar in ask(tool, code=listing.code, **start)["bars"]] == expected


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"limit": 0}, "limit is 0; it must be 1 to 60"),
        ({"limit": 61}, "limit is 61"),
        ({"start_date": "last week"}, "write it as YYYY-MM-DD"),
        ({"start_date": "today"}, "write it as YYYY-MM-DD"),
        ({"start_date": "2023-12-31"}, "bars go from 2024-01-01 to 2025-12-31"),
        ({"start_date": "2026-01-01"}, "bars go from"),
        ({"period": "hourly"}, "must be one of daily, weekly, monthly"),
    ],
)
def test_candles_that_cannot_be_given_are_refused_with_the_value(ask, dual, arguments, complaint):
    with pytest.raises(ToolError, match=complaint):
        ask("get_kline", code=dual.a.code, **arguments)


def test_moving_averages_come_as_four_fields_or_as_those_asked_for(market, ask, dual):
    closes = market.bars(dual.a.code).close_cents_T / 100
    answer = ask("get_moving_average", code=dual.a.code)
    assert list(answer) == ["code", "name", "ma5", "ma10", "ma20", "ma60"]
    assert answer["ma5"] == pytest.approx(closes[-5:].mean(), abs=0.0051)
    assert list(ask("get_moving_average", code=dual.a.code, windows=[30, 120])) == ["code", "name", "ma30", "ma120"]


@pytest.mark.parametrize("windows", [[1], [251], [5, 6, 7, 8, 9, 10, 11]])
def test_windows_that_make_no_sense_are_refused(ask, dual, windows):
    with pytest.raises(ToolError, match="each from 2 to 250 days"):
        ask("get_moving_average", code=dual.a.code, windows=windows)


def test_indicators_are_those_of_the_bars_in_the_listings_currency(market, ask, dual):
    bars = market.bars(dual.hk.code)
    macd, bollinger = ask("get_hk_macd", code=dual.hk.code), ask("get_hk_bollinger", code=dual.hk.code)
    expected = indicators.macd(bars.close_cents_T / 100)
    assert [macd["dif"], macd["dea"], macd["macd"]] == pytest.approx(list(expected), abs=0.0051)
    assert [bollinger["upper"], bollinger["middle"], bollinger["lower"]] == pytest.approx(
        list(indicators.bollinger(bars.close_cents_T / 100)), abs=0.0051
    )
    assert ask("get_hk_volume_trend", code=dual.hk.code)["trend"] == indicators.volume_trend(bars.volume_T)[2]


def test_the_periods_of_an_indicator_are_the_agents_to_choose(market, ask, dual):
    closes, volumes = market.bars(dual.a.code).close_cents_T / 100, market.bars(dual.a.code).volume_T
    macd = ask("get_macd", code=dual.a.code, fast=5, slow=35, signal=5)
    assert [macd["dif"], macd["dea"], macd["macd"]] == pytest.approx(
        list(indicators.macd(closes, fast=5, slow=35, signal=5)), abs=0.0051
    )
    wide = ask("get_bollinger", code=dual.a.code, window=10, width="1.5")
    assert wide["upper"] == pytest.approx(indicators.bollinger(closes, window=10, width=1.5)[0], abs=0.0051)
    trend = ask("get_volume_trend", code=dual.a.code, short=3, long=60)
    assert list(trend)[2:] == ["mean3", "mean60", "trend"]
    assert trend["mean60"] == round(volumes[-60:].mean())
    for tool, bad in (
        ("get_macd", {"fast": 0}),
        ("get_bollinger", {"window": 400}),
        ("get_volume_trend", {"short": 1}),
    ):
        with pytest.raises(ToolError, match="each from 2 to 250 days"):
            ask(tool, code=dual.a.code, **bad)
    with pytest.raises(ToolError, match="above 0 and at most 10"):
        ask("get_bollinger", code=dual.a.code, width=-1)


def test_company_info_says_what_a_lot_is_and_not_where_else_it_is_listed(ask, dual):
    answer = ask("get_hk_company_info", code=dual.hk.code)
    assert list(answer) == ["code", "name", "name_en", "industry", "board", "currency", "lot_size"]
    assert answer["lot_size"] == dual.hk.lot_size
    assert dual.a.code not in json.dumps(answer)
