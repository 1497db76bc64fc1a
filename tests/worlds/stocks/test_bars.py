"""Trading days and daily bars: what must hold of every listing, and what can be worked out by
hand."""

import numpy as np
import pytest

from posttrain.worlds.stocks.bars import MIN_PRICE_CENTS, Bars, aggregate, draw_bars, limits, trading_days
from posttrain.worlds.stocks.market import Market


def bars_of(rows: list[tuple[str, int, int, int, int, int]]) -> Bars:
    dates, *columns = zip(*rows, strict=True)
    return Bars(np.array(dates, dtype="datetime64[D]"), *(np.array(column) for column in columns))


@pytest.fixture(scope="module")
def listed():
    """A hundred listings of all boards with their bars."""
    market = Market(11)
    return [(listing, market.bars(listing.code)) for company in market.companies[:100] for listing in company.listings]


def test_both_markets_trade_about_490_days_and_never_at_a_weekend():
    for market, count in (("a", 485), ("hk", 493)):
        days = trading_days(market)
        assert len(days) == count
        assert np.is_busday(days).all()
        assert (np.diff(days) > np.timedelta64(0, "D")).all()


def test_every_bar_holds_its_open_and_close(listed):
    for _, bars in listed:
        assert (bars.low_cents_T <= np.minimum(bars.open_cents_T, bars.close_cents_T)).all()
        assert (bars.high_cents_T >= np.maximum(bars.open_cents_T, bars.close_cents_T)).all()
        assert (bars.low_cents_T > 0).all()
        assert (bars.close_cents_T >= MIN_PRICE_CENTS).all()
        assert (bars.volume_T > 0).all()


def test_no_price_leaves_the_days_limits_and_some_reach_them(listed):
    at_the_limit = 0
    for listing, bars in listed:
        lowest_T, highest_T = limits(bars.close_cents_T[:-1], listing.limit_pct)
        assert (bars.low_cents_T[1:] >= lowest_T).all()
        assert (bars.high_cents_T[1:] <= highest_T).all()
        at_the_limit += int((bars.close_cents_T[1:] == highest_T).sum())
    assert at_the_limit > 0


def test_limits_round_half_a_cent_up():
    # 1005 at 10 %: 904.5 and 1105.5; at 20 %: 804 and 1206.
    lowest, highest = limits(np.array([1005]), 10)
    assert (lowest[0], highest[0]) == (905, 1106)
    lowest, highest = limits(np.array([1005]), 20)
    assert (lowest[0], highest[0]) == (804, 1206)


def test_bars_lie_on_trading_days_and_suspended_days_have_none(listed):
    missing = 0
    for listing, bars in listed:
        days = trading_days(listing.market)
        assert np.isin(bars.dates_T, days).all()
        assert (np.diff(bars.dates_T) > np.timedelta64(0, "D")).all()
        missing += len(days) - len(bars)
    # About 1.2 % of all days: 0.3 % begin a halt of 4.5 days on average.
    assert 100 < missing < 1500


def test_the_first_bars_of_a_key_are_these_on_every_machine():
    bars = draw_bars(trading_days("a"), key="golden", start_cents=1000, limit_pct=10)
    assert bars.part(0, 3).close_cents_T.tolist() == [977, 963, 960]
    assert bars.part(0, 3).volume_T.tolist() == [521, 700, 500]


WEEK = [
    ("2025-06-05", 10, 11, 9, 10, 1),  # Thursday
    ("2025-06-06", 10, 14, 10, 13, 2),  # Friday
    ("2025-06-09", 13, 13, 12, 12, 4),  # Monday: the next week
    ("2025-06-30", 12, 15, 8, 9, 8),
    ("2025-07-01", 9, 9, 7, 8, 16),  # the same week, the next month
]


def test_weekly_bars_run_from_monday_to_friday_and_carry_their_last_date():
    weekly = aggregate(bars_of(WEEK), "weekly")
    assert weekly.dates_T.astype(str).tolist() == ["2025-06-06", "2025-06-09", "2025-07-01"]
    assert weekly.open_cents_T.tolist() == [10, 13, 12]
    assert weekly.high_cents_T.tolist() == [14, 13, 15]
    assert weekly.low_cents_T.tolist() == [9, 12, 7]
    assert weekly.close_cents_T.tolist() == [13, 12, 8]
    assert weekly.volume_T.tolist() == [3, 4, 24]
