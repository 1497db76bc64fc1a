"""Derives what a listing trades at today, which is the last trading day of the calendars."""

from dataclasses import dataclass

from posttrain.worlds.stocks.calendars import trading_days
from posttrain.worlds.stocks.codes import MarketName
from posttrain.worlds.stocks.fundamentals import HKD_PER_CNY
from posttrain.worlds.stocks.market import Market


@dataclass(frozen=True, slots=True)
class Quote:
    """Prices in the listing's currency, two decimals; `change_pct` in percent; `volume` in 10,000
    shares; `turnover` in millions of the currency.

    A suspended listing shows its last close in all prices, no change and no volume.
    """

    price: float
    change: float
    change_pct: float
    open: float
    high: float
    low: float
    prev_close: float
    volume: int
    turnover: float
    pe: float
    pb: float


def quote(market: Market, code: str) -> Quote:
    """The quote of a canonical code. Raises ToolError where it is not listed."""
    listing = market.listing(code)
    bars = market.bars(code)
    close = int(bars.close_cents_T[-1])
    pe, pb = _multiples(market, code, close, listing.market)
    if bars.dates_T[-1] != trading_days(listing.market)[-1]:
        price = close / 100
        return Quote(price, 0.0, 0.0, price, price, price, price, 0, 0.0, pe, pb)
    previous, opened = int(bars.close_cents_T[-2]), int(bars.open_cents_T[-1])
    high, low, volume = int(bars.high_cents_T[-1]), int(bars.low_cents_T[-1]), int(bars.volume_T[-1])
    return Quote(
        price=close / 100,
        change=(close - previous) / 100,
        change_pct=two_decimals(100 * (close - previous) / previous),
        open=opened / 100,
        high=high / 100,
        low=low / 100,
        prev_close=previous / 100,
        volume=volume,
        # The day's typical price times the shares: cents * 10,000 shares = 0.0001 million.
        turnover=two_decimals((high + low + close) / 3 * volume / 10_000),
        pe=pe,
        pb=pb,
    )


def two_decimals(number: float) -> float:
    """Rounded for reading, and never -0.0, which JSON would show."""
    return round(number, 2) + 0.0


def _multiples(market: Market, code: str, close_cents: int, market_name: MarketName) -> tuple[float, float]:
    fundamentals = market.fundamentals(market.company_of(code))
    close_cny_cents = close_cents / (HKD_PER_CNY if market_name == "hk" else 1.0)
    return two_decimals(close_cny_cents / fundamentals.earnings_cny_cents), two_decimals(
        close_cny_cents / fundamentals.book_value_cny_cents
    )
