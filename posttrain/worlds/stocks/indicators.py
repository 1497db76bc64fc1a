"""Computes the indicators of a listing's closes and volumes: the latest value of each indicator, as
pure functions of an array in ascending time.

Conventions differ between programs; ours: an EMA starts at the first value, MACD's histogram is
doubled as mainland programs show it, Bollinger's deviation divides by the number of values as
Bollinger himself does. All raise ValueError where there are fewer values than the window needs.
"""

from typing import Literal

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64] | npt.NDArray[np.int64]

VOLUME_TREND_SHARE = 0.1


def moving_average(values_T: Values, window: int) -> float:
    """The mean of the last `window` values: 1 2 3 6 with window 2 gives 4.5."""
    return float(np.mean(_last(values_T, window)))


def ema(values_T: Values, span: int) -> npt.NDArray[np.float64]:
    """Weight 2 / (span + 1) on the newest, shape (T,): 2 4 4 with span 3 gives 2, 3, 3.5."""
    _last(values_T, 1)
    weight = 2.0 / (span + 1)
    average = float(values_T[0])
    averages: list[float] = []
    for value in values_T.tolist():
        average += weight * (value - average)
        averages.append(average)
    return np.array(averages)


def macd(values_T: Values, *, fast: int = 12, slow: int = 26, signal: int = 9) -> tuple[float, float, float]:
    """Moving average convergence and divergence (Appel) at the last value: dif = EMA12 - EMA26, dea
    = EMA9 of dif, histogram = 2 (dif - dea). Needs `slow` values."""
    _last(values_T, slow)
    dif_T = ema(values_T, fast) - ema(values_T, slow)
    dif, dea = float(dif_T[-1]), float(ema(dif_T, signal)[-1])
    return dif, dea, 2.0 * (dif - dea)


def bollinger(values_T: Values, *, window: int = 20, width: float = 2.0) -> tuple[float, float, float]:
    """Upper band, mean of the last `window` values, lower band, with `width` standard deviations on
    both sides: 2 4 4 4 5 5 7 9 (mean 5, deviation 2) gives 9, 5, 1."""
    last = _last(values_T, window)
    middle, reach = float(np.mean(last)), width * float(np.std(last))
    return middle + reach, middle, middle - reach


def volume_trend(
    volume_T: Values, *, short: int = 5, long: int = 20
) -> tuple[float, float, Literal["rising", "falling", "flat"]]:
    """The means of `short` and of `long` days, and whether the first is more than a tenth above the
    second, below it, or neither. Twenty days of 100 but for the last five at 200: 200, 125,
    rising."""
    of_short, of_long = moving_average(volume_T, short), moving_average(volume_T, long)
    if of_short > of_long * (1 + VOLUME_TREND_SHARE):
        return of_short, of_long, "rising"
    return of_short, of_long, "falling" if of_short < of_long * (1 - VOLUME_TREND_SHARE) else "flat"


def _last(values_T: Values, window: int) -> Values:
    if len(values_T) < window:
        raise ValueError(f"{len(values_T)} values are fewer than the window of {window}")
    return values_T[-window:]
