"""Indicators worked out on paper."""

import numpy as np
import pytest

from posttrain.worlds.stocks.indicators import bollinger, ema, macd, moving_average, volume_trend


def test_a_moving_average_is_the_mean_of_the_last_values():
    # (3 + 6) / 2 and (1 + 2 + 3 + 6) / 4
    values = np.array([1, 2, 3, 6])
    assert moving_average(values, 2) == 4.5
    assert moving_average(values, 4) == 3.0


def test_an_ema_starts_at_the_first_value_and_moves_half_way_at_span_three():
    # weight 2 / (3 + 1) = 1/2: 2; 2 + (4 - 2)/2 = 3; 3 + (4 - 3)/2 = 3.5; 3.5 + (0 - 3.5)/2 = 1.75
    assert ema(np.array([2, 4, 4, 0]), 3).tolist() == [2.0, 3.0, 3.5, 1.75]


def test_macd_of_small_spans_by_hand():
    # values 0 0 4. Fast span 1, weight 1: the values. Slow span 3, weight 1/2: 0 0 2. dif 0 0 2.
    # Signal span 3, weight 1/2: 0 0 1, so dea 1 and the histogram 2 (2 - 1) = 2.
    assert macd(np.array([0, 0, 4]), fast=1, slow=3, signal=3) == (2.0, 1.0, 2.0)


def test_macd_of_12_26_9_follows_its_weights():
    # 26 values, all 0 but the last, 351 = 13 * 27. EMA12 = 351 * 2/13 = 54, EMA26 = 351 * 2/27 =
    # 26, dif = 28; dea = 28 * 2/10 = 5.6; histogram = 2 (28 - 5.6) = 44.8.
    values = np.array([0] * 25 + [351])
    assert macd(values) == pytest.approx((28.0, 5.6, 44.8), rel=1e-12)


def test_bollinger_bands_by_hand():
    # 2 4 4 4 5 5 7 9: mean 40/8 = 5, squares of the differences 9 1 1 1 0 0 4 16 sum to 32, /8 = 4,
    # deviation 2; 5 +- 2*2.
    assert bollinger(np.array([99, 2, 4, 4, 4, 5, 5, 7, 9]), window=8) == (9.0, 5.0, 1.0)


@pytest.mark.parametrize(
    ("last_five", "mean_20", "direction"),
    [
        (200, 125.0, "rising"),  # (15 * 100 + 5 * 200) / 20
        (20, 80.0, "falling"),  # (1500 + 100) / 20
        (112, 103.0, "flat"),  # 112 / 103 = 1.087
        (100, 100.0, "flat"),
    ],
)
def test_a_volume_trend_compares_five_days_with_twenty(last_five, mean_20, direction):
    assert volume_trend(np.array([7] * 3 + [100] * 15 + [last_five] * 5)) == (last_five, mean_20, direction)


def test_too_few_values_are_refused_with_both_numbers():
    with pytest.raises(ValueError, match="3 values are fewer than the window of 5"):
        moving_average(np.array([1, 2, 3]), 5)
    with pytest.raises(ValueError, match="25 values are fewer than the window of 26"):
        macd(np.zeros(25))
    with pytest.raises(ValueError, match="0 values are fewer than the window of 1"):
        ema(np.array([]), 3)
