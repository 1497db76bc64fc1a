"""The two markets, and the codes of their listings.

People write 600519, sh600519, 600519.SH, 00700, 0700.HK, 700.hk; inside there is one form,
digits.EXCHANGE. Six digits are a mainland code and up to five a Hong Kong one. This is syntax
alone: whether a code is listed, the market knows.
"""

import re
import unicodedata
from typing import Literal, TypeAlias

from posttrain.worlds.lookups.sides import Sides
from posttrain.worlds.tools import ToolError

MarketName: TypeAlias = Literal["a", "hk"]
MARKETS: tuple[MarketName, ...] = ("a", "hk")
MARKET_WORDS: dict[MarketName, str] = {"a": "A-share", "hk": "Hong Kong"}
_WITH_ARTICLE: dict[MarketName, str] = {"a": "an A-share", "hk": "a Hong Kong"}
MARKETS_AS_SIDES = Sides(
    label="market",
    home="a",
    marked="hk",
    words={
        ("a", "en"): "market: A",
        ("hk", "en"): "market: HK",
        ("a", "zh"): "市场: A股",
        ("hk", "zh"): "市场: 港股",
    },
    stated=re.compile(
        r"(?:market|市场)\s*[:：]\s*(?:(?P<home>A)|(?P<marked>HK|港|Hong Kong))(?![A-Za-z])", re.IGNORECASE
    ),
)

_WRITTEN = re.compile(r"(?P<prefix>SH|SS|SZ|BJ|HK)?[.:]?(?P<digits>[0-9]{1,6})(?:[.:]?(?P<suffix>SH|SS|SZ|BJ|HK))?")
_EXCHANGE_OF_DIGITS = (("60", "SH"), ("68", "SH"), ("00", "SZ"), ("30", "SZ"), ("8", "BJ"), ("92", "BJ"))


def canonical(code_text: str, market: MarketName) -> str:
    """The one form of a code: `sh600519` is `600519.SH`, `700` is `00700.HK`. Raises ToolError for
    what is no code, contradicts itself (600519.SZ), or belongs to the other market."""
    code = _read(code_text)
    if code is None:
        example = "600519.SH" if market == "a" else "00700.HK"
        raise ToolError(f"{code_text!r} is not a stock code; a code looks like {example}")
    if market_of(code) != market:
        raise ToolError(
            f"{code} is {_WITH_ARTICLE[market_of(code)]} code; this tool takes {MARKET_WORDS[market]} codes"
        )
    return code


def market_of(code: str) -> MarketName:
    return "hk" if code.endswith(".HK") else "a"


def mainland_code(digits: str) -> str:
    """Six digits with their exchange. Raises ValueError where no exchange has such a number."""
    for start, exchange in _EXCHANGE_OF_DIGITS:
        if digits.startswith(start):
            return f"{digits}.{exchange}"
    raise ValueError(f"no mainland exchange lists a code {digits!r}")


def _read(code_text: str) -> str | None:
    match = _WRITTEN.fullmatch("".join(unicodedata.normalize("NFKC", code_text).split()).upper())
    if match is None:
        return None
    digits = match["digits"]
    written = {exchange.replace("SS", "SH") for exchange in (match["prefix"], match["suffix"]) if exchange}
    if len(digits) <= 5:
        return f"{digits:0>5}.HK" if written <= {"HK"} else None
    try:
        code = mainland_code(digits)
    except ValueError:
        return None
    return code if written <= {code.partition(".")[2]} else None
