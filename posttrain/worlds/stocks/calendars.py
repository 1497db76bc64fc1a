"""Lists the days on which each market trades.

Two years of weekdays less each exchange's own closings, so that the calendars differ as the real
ones do: the mainland rests a week for National Day while Hong Kong trades, Hong Kong rests at
Easter and Christmas while the mainland trades. Closings after the exchanges' published calendars.
"""

from functools import cache

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


@cache
def trading_days(market: MarketName) -> Days:
    """The days on which a market is open, ascending, datetime64[D]; read-only, because it is
    shared."""
    days = np.arange(FIRST_DAY, LAST_DAY + np.timedelta64(1, "D"))
    closed = np.array(_CLOSED_TEXT[market].split(), dtype="datetime64[D]")
    is_open = np.is_busday(days) & ~np.isin(days, closed)
    trading = days[is_open]
    trading.flags.writeable = False
    return trading
