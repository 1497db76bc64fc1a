"""Draws what a share is worth on paper, and where its price began.

Earnings and book value are the company's, so a company listed in both markets has one of each and
two prices, two P/E and two P/B. They are kept in CNY and turned into HKD at one fixed rate; all
companies earn money, so that a P/E is always a positive number.
"""

import random
from dataclasses import dataclass

from posttrain.worlds.stocks.codes import MarketName

HKD_PER_CNY = 1.09


@dataclass(frozen=True, slots=True)
class Fundamentals:
    """One company's figures per share in CNY cents, and the prices its listings began at, in cents
    of their own currency."""

    earnings_cny_cents: float
    book_value_cny_cents: float
    start_cents: dict[MarketName, int]


def draw_fundamentals(key: str) -> Fundamentals:
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
