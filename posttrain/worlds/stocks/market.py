"""The simulated companies: their listings, figures and split.

Counts follow the real markets: 5,300 A-share listings, 2,600 in Hong Kong, and 300 companies in
both under one name (the trap: one name, two codes, two currencies). Companies are drawn when a
market is made; prices only when somebody looks, from (seed, code), so a market of 7,600 companies
is made in an instant and no order of questions changes an answer.
"""

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias, cast

from posttrain.types import Split
from posttrain.worlds.stocks.bars import Bars, draw_bars, trading_days
from posttrain.worlds.stocks.codes import MARKET_WORDS, MarketName, mainland_code, market_of
from posttrain.worlds.stocks.names import company_names, name_key
from posttrain.worlds.tools import ToolError

Board: TypeAlias = Literal["main", "star", "chinext", "beijing", "hk_main"]

NUM_A_LISTINGS = 5300
NUM_HK_LISTINGS = 2600
NUM_DUAL_LISTED = 300
HKD_PER_CNY = 1.09
SPLIT_PERCENT: dict[Split, int] = {"sft": 50, "rl": 25, "dev": 8, "test": 17}

# Share of each board in the A-share market in percent, the first digits of its codes, and how far a
# price may move in a day.
_BOARDS: tuple[tuple[Board, int, tuple[str, ...], int], ...] = (
    ("main", 32, ("600", "601", "603", "605"), 10),
    ("main", 28, ("000", "001", "002", "003"), 10),
    ("chinext", 26, ("300", "301"), 20),
    ("star", 11, ("688",), 20),
    ("beijing", 3, ("830", "831", "920"), 30),
)
_CACHED_LISTINGS = 1024
_HK_LOT_SIZES = (100, 200, 400, 500, 1000, 2000)


@dataclass(frozen=True, slots=True)
class Listing:
    """`limit_pct` is how far a price may move in a day; `lot_size` is in shares."""

    code: str
    market: MarketName
    board: Board
    currency: Literal["CNY", "HKD"]
    lot_size: int
    limit_pct: int | None


@dataclass(frozen=True, slots=True)
class Company:
    """`aliases` are its Chinese short form and its English name with the industry."""

    company_id: str
    name_zh: str
    name_en: str
    aliases: tuple[str, ...]
    industry: str
    a: Listing | None
    hk: Listing | None

    @property
    def is_dual_listed(self) -> bool:
        return self.a is not None and self.hk is not None

    @property
    def listings(self) -> tuple[Listing, ...]:
        return tuple(listing for listing in (self.a, self.hk) if listing is not None)

    def on(self, market: MarketName) -> Listing | None:
        return self.a if market == "a" else self.hk


@dataclass(frozen=True, slots=True)
class Fundamentals:
    """Figures per share in CNY cents, and the listings' first prices in cents of their currency."""

    earnings_cny_cents: float
    book_value_cny_cents: float
    start_cents: dict[MarketName, int]


class Market:
    """Both markets of one seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.companies: tuple[Company, ...] = tuple(_draw_companies(seed))
        self._by_code = {listing.code: (company, listing) for company in self.companies for listing in company.listings}
        self._by_name = {
            name_key(name): company
            for company in self.companies
            for name in (company.name_zh, company.name_en, *company.aliases)
        }
        # One text to look into first: most names that are not found are parts of no name, and
        # 30,000 forms are slow to try one by one.
        self._all_forms = "\n".join(self._by_name)
        self._splits = _partition(self.companies, seed)
        # Bounded: one listing's bars are 24 KB, and a run looks at thousands of listings.
        self._cached_bars = lru_cache(maxsize=_CACHED_LISTINGS)(self._draw_bars)

    def companies_of(self, split: Split) -> tuple[Company, ...]:
        """The companies that only this split's tasks may be about."""
        return self._splits[cast(Split, split.partition("_")[0])]

    def look_up(self, code: str) -> tuple[Company, Listing]:
        """The company and the listing of a canonical code. Raises ToolError where there is none."""
        try:
            return self._by_code[code]
        except KeyError:
            raise ToolError(f"no {MARKET_WORDS[market_of(code)]} company has the code {code}") from None

    def find(self, name: str, market: MarketName, *, limit: int = 5) -> list[Company]:
        """The company of that Chinese or English name or alias on a market, else up to `limit`
        companies whose name contains the text; else none."""
        key = name_key(name)
        exact = self._by_name.get(key)
        if exact is not None and exact.on(market) is not None:
            return [exact]
        if exact is not None or not key or key not in self._all_forms:
            return []
        holding = dict.fromkeys(
            company for form, company in self._by_name.items() if key in form and company.on(market) is not None
        )
        return list(holding)[:limit]

    def bars(self, code: str) -> Bars:
        """The daily bars of a canonical code. Raises ToolError."""
        return self._cached_bars(code)

    def fundamentals(self, company: Company) -> Fundamentals:
        return _draw_fundamentals(f"{self.seed}/{company.company_id}/fundamentals")

    def _draw_bars(self, code: str) -> Bars:
        company, listing = self.look_up(code)
        days, key = trading_days(listing.market), f"{self.seed}/{code}/bars"
        start_cents = self.fundamentals(company).start_cents[listing.market]
        return draw_bars(days, key=key, start_cents=start_cents, limit_pct=listing.limit_pct)


def _draw_fundamentals(key: str) -> Fundamentals:
    """Prices of 6 to 146 CNY, half of them under 41; P/E 5 to 65 and P/B 0.6 to 8.6 at that price.
    Hong Kong began 5 to 45 % below the mainland."""
    draw = random.Random(key)
    uniform = draw.random()
    start_cny_cents = 600 + int(14_000 * uniform * uniform)
    return Fundamentals(
        earnings_cny_cents=start_cny_cents / (5.0 + 60.0 * draw.random()),
        book_value_cny_cents=start_cny_cents / (0.6 + 8.0 * draw.random()),
        start_cents={"a": start_cny_cents, "hk": int(start_cny_cents * HKD_PER_CNY * (0.55 + 0.4 * draw.random()))},
    )


def quote(market: Market, code: str) -> dict[str, float]:
    """The quote of the last trading day. Prices in the listing's currency, two decimals;
    `change_pct` in percent; `volume` in 10,000 shares; `turnover` in millions of the currency.

    A suspended listing shows its last close in all prices, no change and no volume. Raises
    ToolError where the code is not listed.
    """
    company, listing = market.look_up(code)
    bars = market.bars(code)
    close, volume = int(bars.close_cents_T[-1]), int(bars.volume_T[-1])
    opened, high, low = (int(cents_T[-1]) for cents_T in (bars.open_cents_T, bars.high_cents_T, bars.low_cents_T))
    previous = int(bars.close_cents_T[-2])
    if bars.dates_T[-1] != trading_days(listing.market)[-1]:
        opened = high = low = previous = close
        volume = 0
    close_cny_cents = close / (HKD_PER_CNY if listing.market == "hk" else 1.0)
    fundamentals = market.fundamentals(company)
    return {
        "price": close / 100,
        "change": (close - previous) / 100,
        "change_pct": two_decimals(100 * (close - previous) / previous),
        "open": opened / 100,
        "high": high / 100,
        "low": low / 100,
        "prev_close": previous / 100,
        "volume": volume,
        # The day's typical price times the shares: cents * 10,000 shares = 0.0001 million.
        "turnover": two_decimals((high + low + close) / 3 * volume / 10_000),
        "pe": two_decimals(close_cny_cents / fundamentals.earnings_cny_cents),
        "pb": two_decimals(close_cny_cents / fundamentals.book_value_cny_cents),
    }


def two_decimals(number: float) -> float:
    """Rounded for reading, and never -0.0, which JSON would show."""
    return round(number, 2) + 0.0


def _draw_companies(seed: int) -> list[Company]:
    """All companies in an order that says nothing about where they are listed."""
    draw = random.Random(f"{seed}/companies")
    a_listings = _draw_a_listings(draw)
    hk_listings = [
        Listing(f"{number:05d}.HK", "hk", "hk_main", "HKD", draw.choice(_HK_LOT_SIZES), None)
        for number in draw.sample(range(1, 10_000), NUM_HK_LISTINGS)
    ]
    pairs: list[tuple[Listing | None, Listing | None]] = list(
        zip(a_listings[:NUM_DUAL_LISTED], hk_listings[:NUM_DUAL_LISTED], strict=True)
    )
    pairs += [(listing, None) for listing in a_listings[NUM_DUAL_LISTED:]]
    pairs += [(None, listing) for listing in hk_listings[NUM_DUAL_LISTED:]]
    draw.shuffle(pairs)
    names = company_names(len(pairs), seed=seed)
    return [
        Company(f"c{number:04d}", name.zh, name.en, name.aliases, name.industry, *pair)
        for number, (name, pair) in enumerate(zip(names, pairs, strict=True))
    ]


def _draw_a_listings(draw: random.Random) -> list[Listing]:
    listings = []
    for board, percent, starts, limit_pct in _BOARDS:
        numbers = [f"{start}{tail:03d}" for start in starts for tail in range(1, 1000)]
        for digits in draw.sample(numbers, NUM_A_LISTINGS * percent // 100):
            listings.append(Listing(mainland_code(digits), "a", board, "CNY", 100, limit_pct))
    draw.shuffle(listings)
    return listings


def _partition(companies: Sequence[Company], seed: int) -> dict[Split, tuple[Company, ...]]:
    """Cuts each kind of company (mainland, Hong Kong, both) in the same shares."""
    parts: dict[Split, list[Company]] = {split: [] for split in SPLIT_PERCENT}
    for kind in ((True, False), (False, True), (True, True)):
        members = [company for company in companies if (company.a is not None, company.hk is not None) == kind]
        members.sort(key=lambda company: hashlib.sha256(f"{seed}/split/{company.company_id}".encode()).digest())
        start = percent_before = 0
        for split, percent in SPLIT_PERCENT.items():
            percent_before += percent
            end = len(members) * percent_before // 100
            parts[split] += members[start:end]
            start = end
    return {split: tuple(members) for split, members in parts.items()}
