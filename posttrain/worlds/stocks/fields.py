"""The fields of a listing that questions ask for: the tool that tells each, and its unit."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

from posttrain.worlds.lookups.gold import Answer
from posttrain.worlds.stocks.codes import MARKETS_AS_SIDES, MarketName, market_of

CURRENCY: dict[MarketName, str] = {"a": "CNY", "hk": "HKD"}


@dataclass(frozen=True, slots=True)
class Field:
    """One value in the result of `tool` (the A-share market's) and of those in `also_told_by`."""

    name: str
    tool: str
    measure: Literal["price", "percent", "ratio", "volume", "turnover", "shares", "word"]
    also_told_by: tuple[str, ...] = ()

    def tool_on(self, market: MarketName) -> str:
        return self.tool if market == "a" else MARKETS_AS_SIDES.twin(self.tool)

    def unit(self, market: MarketName) -> str:
        """`wan` is 10,000 shares and `CNYm` a million CNY, as the tools count them."""
        currency = CURRENCY[market]
        units = {"price": currency, "percent": "%", "ratio": "x", "volume": "wan", "turnover": f"{currency}m"}
        return {**units, "shares": "shares", "word": ""}[self.measure]

    def answer_in(self, result: Mapping[str, Any]) -> Answer:
        """The answer as a result of the tool states it; of several bars the first."""
        value = self._value_in(result)
        if self.measure == "word":
            return Answer("choice", str(value))
        return Answer("number", Decimal(str(value)), self.unit(market_of(str(result["code"]))))

    def quoted_from(self, result: Mapping[str, Any], *, with_code: bool = False) -> str:
        """The key with its value as the tool writes them: `{"code":"00700.HK","open":12.5}`."""
        value = self._value_in(result)
        code = f'"code":"{result["code"]}",' if with_code else ""
        return f'{{{code}"{self._key}":"{value}"}}' if self.measure == "word" else f'{{{code}"{self._key}":{value}}}'

    @property
    def _key(self) -> str:
        return _KEYS.get(self.name, self.name)

    def _value_in(self, result: Mapping[str, Any]) -> Any:
        return (result["bars"][0] if "bars" in result else result)[self._key]


_KEYS = {"day_open": "open", "day_high": "high", "day_low": "low", "day_close": "close"}
_QUOTE, _BARS = "get_realtime_quote", ("get_kline",)

FIELDS: dict[str, Field] = {
    field.name: field
    for field in (
        *(Field(name, _QUOTE, "price", _BARS) for name in ("price", "open", "high", "low", "prev_close")),
        Field("change_pct", _QUOTE, "percent"),
        Field("volume", _QUOTE, "volume", _BARS),
        Field("turnover", _QUOTE, "turnover"),
        Field("pe", _QUOTE, "ratio"),
        Field("pb", _QUOTE, "ratio"),
        *(Field(name, "get_macd", "price") for name in ("dif", "dea", "macd")),
        *(Field(name, "get_bollinger", "price") for name in ("upper", "lower")),
        *(
            Field(f"ma{days}", "get_moving_average", "price", ("get_bollinger",) if days == 20 else ())
            for days in (5, 10, 20, 60)
        ),
        *(Field(name, "get_volume_trend", "volume") for name in ("mean5", "mean20")),
        Field("trend", "get_volume_trend", "word"),
        Field("lot_size", "get_company_info", "shares"),
        *(Field(name, "get_kline", "price") for name in _KEYS),
    )
}

PRICES = ("price", "open", "high", "low", "prev_close")
BASIC_FIELDS = (*PRICES, "pe")
QUOTE_FIELDS = (*PRICES, "change_pct", "volume", "turnover", "pe", "pb")
RATIOS = ("pe", "pb")
MOMENTUM = ("dif", "dea", "macd")
BANDS = ("upper", "lower")
AVERAGES = ("ma5", "ma10", "ma20", "ma60")
VOLUMES = ("mean5", "mean20", "trend")
BAR_FIELDS = tuple(_KEYS)
# Where one indicator is taken for the other, the value that stands at the same place is read.
MIXED_UP = {"dif": "upper", "dea": "middle", "macd": "lower"}


def read_result(content: str) -> Any:
    """A tool's result with numbers as decimals, so that an answer copies the digits."""
    return json.loads(content, parse_float=Decimal)
