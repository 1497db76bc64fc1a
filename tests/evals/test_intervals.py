import pytest

from posttrain.evals import intervals
from posttrain.evals.intervals import bootstrap_interval


def test_half_of_400_successes_lie_within_two_standard_errors():
    # standard error sqrt(.5 * .5 / 400) = 0.025, so about 0.5 -+ 1.96 * 0.025
    low, high = bootstrap_interval([0.0, 1.0] * 200, level=0.95, num_bootstrap=4000, seed=1)
    assert low == pytest.approx(0.451, abs=0.005)
    assert high == pytest.approx(0.549, abs=0.005)


def test_the_same_seed_gives_the_same_interval_and_another_one_does_not():
    values = [0.0, 1.0, 1.0, 0.3] * 10
    first = bootstrap_interval(values, level=0.95, num_bootstrap=500, seed=1)
    assert first == bootstrap_interval(values, level=0.95, num_bootstrap=500, seed=1)
    assert first != bootstrap_interval(values, level=0.95, num_bootstrap=500, seed=2)


def test_drawing_in_several_goes_gives_the_same_interval(monkeypatch):
    values = [0.0, 1.0, 1.0] * 20
    at_once = bootstrap_interval(values, level=0.9, num_bootstrap=300, seed=1)
    monkeypatch.setattr(intervals, "_CELLS_AT_ONCE", 7 * len(values))
    assert bootstrap_interval(values, level=0.9, num_bootstrap=300, seed=1) == at_once


def test_where_all_tasks_agree_the_interval_has_no_width():
    assert bootstrap_interval([1.0] * 9, level=0.95, num_bootstrap=100, seed=1) == (1.0, 1.0)


def test_no_task_has_no_interval():
    with pytest.raises(ValueError, match="one task or more"):
        bootstrap_interval([], level=0.95, num_bootstrap=100, seed=1)
