"""The eight tools of the stock world, each written once and bound to both markets: get_macd and
get_hk_macd.

A tool of one market refuses the other's codes, so that the wrong market is a mistake that the agent
can see and repair. The docstrings are prompt text: `$market` and `$code` stand for the market's
word and an example of its codes. Results are short, because a small model reads every token.
"""

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from string import Template
from typing import Any

import numpy as np

from posttrain.types import JsonValue
from posttrain.worlds.stocks import indicators
from posttrain.worlds.stocks.bars import FIRST_DAY, LAST_DAY, Bars, Period, aggregate
from posttrain.worlds.stocks.codes import MARKET_WORDS, MARKETS, MARKETS_AS_SIDES, MarketName, canonical
from posttrain.worlds.stocks.market import Company, Listing, Market, quote, two_decimals
from posttrain.worlds.tools import Tool, ToolError, tool_from

MAX_BARS = 60
MAX_WINDOW = 250
MAX_WINDOWS = 6
MAX_WIDTH = 10
_EXAMPLE_CODES: dict[MarketName, str] = {"a": "600519.SH", "hk": "00700.HK"}


def stock_tools(market: Market) -> dict[str, Tool]:
    """All tools by name, the A-share market's first."""
    tools = [tool for name in MARKETS for tool in _MarketTools(market, name).tools()]
    return {tool.name: tool for tool in tools}


class _MarketTools:
    """The tools of one market."""

    def __init__(self, market: Market, name: MarketName) -> None:
        self._market = market
        self._name = name

    def tools(self) -> list[Tool]:
        functions: Sequence[Callable[..., JsonValue]] = (
            *(self.search_stock, self.get_company_info, self.get_realtime_quote, self.get_kline),
            *(self.get_moving_average, self.get_macd, self.get_bollinger, self.get_volume_trend),
        )
        words = {"market": MARKET_WORDS[self._name], "code": _EXAMPLE_CODES[self._name]}
        names = [function.__name__ for function in functions]
        names = names if self._name == "a" else [MARKETS_AS_SIDES.twin(name) for name in names]
        return [
            _fill(tool_from(function, name=name, is_instant=True, side_effect="none"), words)
            for name, function in zip(names, functions, strict=True)
        ]

    def search_stock(self, name: str) -> JsonValue:
        """Find the code of a company listed on the $market market by its Chinese or English name or
        short name.

        Args:
            name: the name as the user wrote it
        """
        found = self._market.find(name, self._name)
        if not found:
            raise ToolError(f"no {MARKET_WORDS[self._name]} company named {name!r}")
        return [
            {"code": listing.code, "name": company.name_en if name.isascii() else company.name_zh}
            for company in found
            if (listing := company.on(self._name)) is not None
        ]

    def get_company_info(self, code: str) -> JsonValue:
        """Get the profile of a company on the $market market: industry, board, currency, and lot
        size in shares.

        Args:
            code: stock code, such as $code
        """
        company, listing = self._look_up(code)
        return {
            **_head(company, listing),
            "name_en": company.name_en,
            "industry": company.industry,
            "board": listing.board,
            "currency": listing.currency,
            "lot_size": listing.lot_size,
        }

    def get_realtime_quote(self, code: str) -> JsonValue:
        """Get the realtime quote of a stock on the $market market (simulated): price, change, open,
        high, low, previous close, volume in 10,000 shares, turnover in millions, P/E and P/B.

        Args:
            code: stock code, such as $code
        """
        company, listing = self._look_up(code)
        return {
            **_head(company, listing),
            "currency": listing.currency,
            **quote(self._market, listing.code),
            "is_simulated": True,
        }

    def get_kline(
        self, code: str, period: Period = "daily", start_date: str | None = None, limit: int = 5
    ) -> JsonValue:
        """Get candlestick bars of a stock on the $market market, oldest first: date, open, high,
        low, close, volume in 10,000 shares.

        Args:
            code: stock code, such as $code
            period: length of one bar
            start_date: the first date, YYYY-MM-DD; without it the latest bars
            limit: number of bars, 1 to 60
        """
        company, listing = self._look_up(code)
        if not 1 <= limit <= MAX_BARS:
            raise ToolError(f"limit is {limit}; it must be 1 to {MAX_BARS}")
        bars = aggregate(self._market.bars(listing.code), period)
        first = max(len(bars) - limit, 0)
        if start_date is not None:
            first = int(np.searchsorted(bars.dates_T, _date(start_date)))
        if first == len(bars):
            raise ToolError(f"{listing.code} has no bar on or after {start_date}")
        return {**_head(company, listing), "period": period, "bars": _rows(bars.part(first, first + limit))}

    def get_moving_average(self, code: str, windows: list[int] | None = None) -> JsonValue:
        """Get the latest moving averages of the daily closes of a stock on the $market market: ma5,
        ma10, ma20, ma60.

        Args:
            code: stock code, such as $code
            windows: other windows in days, such as [30, 120]
        """
        company, listing = self._look_up(code)
        windows = windows or [5, 10, 20, 60]
        _refuse_windows(*windows)
        closes = self._market.bars(listing.code).close_cents_T
        averages = {f"ma{window}": _money(indicators.moving_average(closes, window)) for window in windows}
        return {**_head(company, listing), **averages}

    def get_macd(self, code: str, fast: int = 12, slow: int = 26, signal: int = 9) -> JsonValue:
        """Get the latest MACD(12,26,9) of a stock on the $market market: dif, dea and macd, the
        histogram.

        Args:
            code: stock code, such as $code
            fast: days of the fast average
            slow: days of the slow average
            signal: days of dea
        """
        company, listing = self._look_up(code)
        _refuse_windows(fast, slow, signal)
        closes = self._market.bars(listing.code).close_cents_T
        dif, dea, histogram = indicators.macd(closes, fast=fast, slow=slow, signal=signal)
        return {**_head(company, listing), "dif": _money(dif), "dea": _money(dea), "macd": _money(histogram)}

    def get_bollinger(self, code: str, window: int = 20, width: float = 2.0) -> JsonValue:
        """Get the latest Bollinger bands(20,2) of a stock on the $market market: upper, middle and
        lower.

        Args:
            code: stock code, such as $code
            window: days of the mean
            width: distance of the bands in standard deviations
        """
        company, listing = self._look_up(code)
        _refuse_windows(window)
        if not 0 < width <= MAX_WIDTH:
            raise ToolError(f"width is {width}; it must be above 0 and at most {MAX_WIDTH}")
        closes = self._market.bars(listing.code).close_cents_T
        upper, middle, lower = indicators.bollinger(closes, window=window, width=width)
        return {**_head(company, listing), "upper": _money(upper), "middle": _money(middle), "lower": _money(lower)}

    def get_volume_trend(self, code: str, short: int = 5, long: int = 20) -> JsonValue:
        """Get the volume trend of a stock on the $market market: mean volume of 5 and of 20 days in
        10,000 shares, and whether it is rising, falling or flat.

        Args:
            code: stock code, such as $code
            short: days of the mean that is compared
            long: days of the mean that it is compared with
        """
        company, listing = self._look_up(code)
        _refuse_windows(short, long)
        volumes = self._market.bars(listing.code).volume_T
        of_short, of_long, direction = indicators.volume_trend(volumes, short=short, long=long)
        means = {f"mean{short}": round(of_short), f"mean{long}": round(of_long)}
        return {**_head(company, listing), **means, "trend": direction}

    def _look_up(self, code: str) -> tuple[Company, Listing]:
        return self._market.look_up(canonical(code, self._name))


def _head(company: Company, listing: Listing) -> dict[str, JsonValue]:
    return {"code": listing.code, "name": company.name_zh}


def _refuse_windows(*windows: int) -> None:
    if len(windows) > MAX_WINDOWS or not all(2 <= window <= MAX_WINDOW for window in windows):
        raise ToolError(f"windows are {[*windows]}; give at most {MAX_WINDOWS}, each from 2 to {MAX_WINDOW} days")


def _rows(bars: Bars) -> list[JsonValue]:
    cents = (bars.open_cents_T, bars.high_cents_T, bars.low_cents_T, bars.close_cents_T)
    columns = [array.tolist() for array in (bars.dates_T.astype(str), *(each / 100 for each in cents), bars.volume_T)]
    names = ("date", "open", "high", "low", "close", "volume")
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _money(cents: float) -> float:
    return two_decimals(cents / 100)


def _date(text: str) -> np.datetime64:
    try:
        # Not numpy's own parser: it takes "today" for a date, and the answer would change
        # overnight.
        date = np.datetime64(datetime.date.fromisoformat(text), "D")
    except ValueError:
        raise ToolError(f"start_date is {text!r}; write it as YYYY-MM-DD") from None
    if not FIRST_DAY <= date <= LAST_DAY:
        raise ToolError(f"start_date is {text}; bars go from {FIRST_DAY} to {LAST_DAY}")
    return date


def _fill(tool: Tool, words: Mapping[str, str]) -> Tool:
    """The tool with the market's words in its texts."""
    properties: dict[str, Any] = {
        name: {key: Template(text).substitute(words) if key == "description" else text for key, text in schema.items()}
        for name, schema in tool.parameters["properties"].items()
    }
    return replace(
        tool,
        description=Template(tool.description).substitute(words),
        parameters={**tool.parameters, "properties": properties},
    )
