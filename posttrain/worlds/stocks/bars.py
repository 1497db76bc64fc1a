"""Trading days and simulated daily bars of a listing over two years.

Trading days are weekdays less each exchange's own published closings, so that the calendars differ
as the real ones do: the mainland rests a week for National Day while Hong Kong trades, Hong Kong
rests at Easter and Christmas while the mainland trades.

Prices are a seeded random walk in whole cents, so that limits are exact and every machine finds the
same prices: only integers and IEEE's four operations are used. A suspended day has no bar.
"""

import hashlib
from dataclasses import dataclass, fields
from functools import cache
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from posttrain.worlds.stocks.codes import MarketName

FIRST_DAY = np.datetime64("2024-01-01")
LAST_DAY = np.datetime64("2025-12-31")

Days = npt.NDArray[np.datetime64]

_CLOSED_TEXT: dict[MarketName, str] = {
    "a": """
        2024-01-01 2024-02-09 2024-02-12 2024-02-13 2024-02-14 2024-02-15 2024-02-16 2024-04-04
        2024-04-05 2024-05-01 2024-05-02 2024-05-03
        2024-06-10 2024-09-16 2024-09-17 2024-10-01 2024-10-02 2024-10-03 2024-10-04 2024-10-07
        2025-01-01 2025-01-28 2025-01-29 2025-01-30 2025-01-31 2025-02-03 2025-02-04 2025-04-04
        2025-05-01 2025-05-02 2025-05-05
        2025-06-02 2025-10-01 2025-10-02 2025-10-03 2025-10-06 2025-10-07 2025-10-08
    """,
    "hk": """
        2024-01-01 2024-02-12 2024-02-13 2024-03-29 2024-04-01 2024-04-04 2024-05-01 2024-05-15
        2024-06-10 2024-07-01 2024-09-18 2024-10-01
        2024-10-11 2024-12-25 2024-12-26
        2025-01-01 2025-01-29 2025-01-30 2025-01-31 2025-04-04 2025-04-18 2025-04-21 2025-05-01
        2025-05-05 2025-07-01 2025-10-01 2025-10-07
        2025-10-29 2025-12-25 2025-12-26
    """,
}

Cents = npt.NDArray[np.int64]
Period: TypeAlias = Literal["daily", "weekly", "monthly"]

MIN_PRICE_CENTS = 100
_STEP_BP = 440  # a step is this many basis points times a triangular draw of standard deviation 0.41, so 1.8 % a day
# share of days with news, and how much larger their step is; it often ends at the limit
_JUMP_RATE, _JUMP_SIZE = 0.012, 6
_HALT_RATE, _MAX_HALT_DAYS = 0.003, 8  # share of days on which a suspension begins


@dataclass(frozen=True, slots=True)
class Bars:
    """One listing's bars, shape (T,), in hundredths of its currency and units of 10,000 shares."""

    dates_T: Days
    open_cents_T: Cents
    high_cents_T: Cents
    low_cents_T: Cents
    close_cents_T: Cents
    volume_T: Cents

    def __len__(self) -> int:
        return len(self.dates_T)

    def part(self, start: int, stop: int) -> "Bars":
        """The bars from `start` up to `stop`, without copying."""
        return Bars(*(getattr(self, field.name)[start:stop] for field in fields(self)))


@cache
def trading_days(market: MarketName) -> Days:
    """The days on which a market is open, ascending; read-only, because it is shared."""
    days = np.arange(FIRST_DAY, LAST_DAY + np.timedelta64(1, "D"))
    closed = np.array(_CLOSED_TEXT[market].split(), dtype="datetime64[D]")
    is_open = np.is_busday(days) & ~np.isin(days, closed)
    trading = days[is_open]
    trading.flags.writeable = False
    return trading


def draw_bars(days_D: Days, *, key: str, start_cents: int, limit_pct: int | None) -> Bars:
    """The daily bars of the listing that `key` names, without suspended days. `start_cents` is the
    close before the first. No price is further than `limit_pct` percent from the previous close."""
    source = np.random.Generator(np.random.PCG64(int.from_bytes(hashlib.sha256(key.encode()).digest()[:8])))
    uniform_8_D = source.random((8, len(days_D)))
    is_traded_D = ~_suspended(uniform_8_D[0])
    jump_T, first_T, second_T, gap_T, above_T, below_T, busy_T = uniform_8_D[1:, is_traded_D]
    step_T = (first_T + second_T - 1.0) * np.where(jump_T < _JUMP_RATE, _STEP_BP * _JUMP_SIZE, _STEP_BP)
    close_T = _walk(step_T.astype(np.int64).tolist(), start_cents, limit_pct)
    previous_T = np.concatenate(([start_cents], close_T[:-1]))
    lowest_T, highest_T = limits(previous_T, limit_pct)
    open_T = np.clip(previous_T + _share(previous_T, (gap_T - 0.5) * 0.02), lowest_T, highest_T)
    high_T = np.minimum(np.maximum(open_T, close_T) + _share(close_T, above_T * 0.015), highest_T)
    low_T = np.maximum(np.minimum(open_T, close_T) - _share(close_T, below_T * 0.015), lowest_T)
    moved_T = np.abs(close_T - previous_T) / previous_T
    volume_T = (_usual_volume(source, len(close_T)) * (0.75 + 0.5 * busy_T) * (1.0 + 8.0 * moved_T)).astype(np.int64)
    return Bars(days_D[is_traded_D], open_T, high_T, low_T, close_T, volume_T)


def limits(previous_T: Cents, limit_pct: int | None) -> tuple[Cents, Cents]:
    """The lowest and highest price allowed after a previous close, in cents, halves rounded up:
    1005 at 10 % gives 905 (904.5) and 1106 (1105.5). Without a limit 0 and twice the close."""
    percent = 100 if limit_pct is None else limit_pct
    return (previous_T * (100 - percent) + 50) // 100, (previous_T * (100 + percent) + 50) // 100


def aggregate(bars: Bars, period: Period) -> Bars:
    """Weekly (Monday to Friday) or monthly bars, dated by the last bar in them: 10-11-9-10,
    10-14-10-13 and 13-13-12-12 (open-high-low-close) of one week make the bar 10-14-9-12."""
    if period == "daily":
        return bars
    # 1970-01-01, day 0 of numpy's calendar, was a Thursday; three days on, weeks begin on Mondays.
    weeks_T, months_T = (bars.dates_T.astype("int64") + 3) // 7, bars.dates_T.astype("datetime64[M]").astype("int64")
    bucket_T = weeks_T if period == "weekly" else months_T
    starts = np.flatnonzero(np.concatenate(([True], bucket_T[1:] != bucket_T[:-1])))
    ends = np.concatenate((starts[1:], [len(bars)])) - 1
    return Bars(
        bars.dates_T[ends],
        bars.open_cents_T[starts],
        np.maximum.reduceat(bars.high_cents_T, starts),
        np.minimum.reduceat(bars.low_cents_T, starts),
        bars.close_cents_T[ends],
        np.add.reduceat(bars.volume_T, starts),
    )


def _walk(step_bp_T: list[int], start_cents: int, limit_pct: int | None) -> Cents:
    """The closes, in a plain loop, because each day's limits hang on the day before."""
    down_percent, up_percent = (0, 200) if limit_pct is None else (100 - limit_pct, 100 + limit_pct)
    closes: list[int] = []
    close = start_cents
    for step_bp in step_bp_T:
        previous = close
        # Rounded to the nearest cent: rounding down would take half a cent a day from everybody,
        # and a cheap share to the floor in two years.
        close = previous + (previous * step_bp + 5_000) // 10_000
        up, down = (previous * up_percent + 50) // 100, (previous * down_percent + 50) // 100
        close = min(close, up) if step_bp > 0 else max(close, down, MIN_PRICE_CENTS)
        closes.append(close)
    return np.array(closes, dtype=np.int64)


def _suspended(uniform_D: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """A suspension begins where a draw is under the rate; how far under says how long it lasts."""
    is_suspended_D = np.zeros(len(uniform_D), dtype=np.bool_)
    for day in np.flatnonzero(uniform_D < _HALT_RATE):
        is_suspended_D[day : day + 1 + int(uniform_D[day] / _HALT_RATE * _MAX_HALT_DAYS)] = True
    return is_suspended_D


def _usual_volume(source: np.random.Generator, num_bars: int) -> npt.NDArray[np.float64]:
    """A listing's own level times a slow triangular wave, so that volume has trends to find."""
    level, period, phase = source.random(3)
    position_T = np.arange(num_bars) / (20.0 + 40.0 * period) + 2.0 * phase
    volume_T: npt.NDArray[np.float64] = (60.0 + 900.0 * level * level) * (0.5 + np.abs(position_T % 2.0 - 1.0))
    return volume_T


def _share(cents_T: Cents, share_T: npt.NDArray[np.float64]) -> Cents:
    return (cents_T * share_T).astype(np.int64)
