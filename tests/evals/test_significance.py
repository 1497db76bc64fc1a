"""Promises of a verdict, on settings whose truth is known."""

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from scipy import stats

from benchmarks.verdicts import DIFFICULTY, SimulatedSetting, simulated_runs
from posttrain.evals.significance import (
    Decision,
    Outcomes,
    Spread,
    Verdict,
    corrected,
    difference,
    mean_interval,
    paired_difference,
    share_interval,
    spread_over,
)
from posttrain.runtime.exits import DataError

NUM_SIMULATIONS = 1000


def simulate(first: float, second: float, num_seeds: int, num_tasks: int, spread: float) -> list[Verdict]:
    rng = np.random.default_rng([num_seeds, num_tasks, int(1000 * second)])
    logits = SimulatedSetting(first, spread).logits(), SimulatedSetting(second, spread).logits()
    found = []
    for _ in range(NUM_SIMULATIONS):
        tasks_T = rng.normal(size=num_tasks) * DIFFICULTY
        runs = [simulated_runs(rng, one, tasks_T, num_seeds) for one in logits]
        found.append(difference(runs[0], runs[1], spread=Spread(spread, 3) if num_seeds == 1 else None))
    return found


@pytest.mark.parametrize("spread", [0.0, 0.03])
@pytest.mark.parametrize(
    ("num_seeds", "num_tasks"),
    [(3, 30), (5, 30), *(pytest.param(number, 480, marks=pytest.mark.needs_large) for number in (3, 5))],
)
def test_equal_settings_are_called_different_in_one_of_twenty_at_most_and_the_interval_covers(
    num_seeds, num_tasks, spread
):
    found = simulate(0.8, 0.8, num_seeds, num_tasks, spread)
    assert sum(one.decision in (Decision.BETTER, Decision.WORSE) for one in found) <= 0.05 * NUM_SIMULATIONS
    assert sum(one.low <= 0 <= one.high for one in found) >= 0.93 * NUM_SIMULATIONS


@pytest.mark.needs_large
def test_eight_points_are_found_in_four_of_five_and_the_interval_covers_them():
    found = simulate(0.8, 0.88, 5, 480, 0.03)
    assert Counter(one.decision for one in found)[Decision.BETTER] >= 0.8 * NUM_SIMULATIONS
    assert sum(one.low <= 0.08 <= one.high for one in found) >= 0.93 * NUM_SIMULATIONS
    # Each says about what it could have shown, and that is near what was there to be shown.
    assert np.median([one.smallest_shown for one in found]) == pytest.approx(0.075, abs=0.015)


def test_one_run_of_each_is_never_called_better_or_worse_and_says_how_many_more():
    for one in simulate(0.6, 0.95, 1, 480, 0.03):
        assert (one.decision, one.is_of_runs_only, one.num_seeds) == (Decision.NEEDS_MORE, False, (1, 1))
        assert one.advice.startswith("needs ")


def test_two_seeds_of_one_setting_are_tied_however_far_they_lie_apart():
    runs = [[{str(task): float(task < limit) for task in range(480)}] for limit in (414, 443)]
    one = difference(*runs, spread=Spread(0.0305, 3), is_one_setting=True)
    assert (one.decision, one.advice, round(one.estimate, 4)) == (Decision.TIED, "tied", 0.0604)
    assert one.low < 0 < one.high  # of tasks alone it would be above 0
    assert difference(*runs).low > 0
    assert difference(*runs).is_of_runs_only


def test_by_hand():
    """Two seeds and two tasks: the components are worked out on paper."""
    first = [{"a": 1.0, "b": 0.0}, {"a": 1.0, "b": 1.0}]
    second = [{"a": 0.0, "b": 0.0}, {"a": 0.0, "b": 0.0}]
    one = difference(first, second)
    # Tasks: differences -1 and -1/2, variance 1/8. Seeds: means 1/2 and 1, variance 1/8, halved.
    # Rest: residuals of the first all 1/4, their mean square 1/4, so 1/4 / 2 / 2; of the second 0.
    of_tasks, of_seeds, of_plays = max(0.125, 0.5) / 2, 0.125 / 2, 0.25 / 2 / 2
    variance = of_tasks + max(0, of_seeds - of_plays)
    freedom = max(variance**2 / (of_tasks**2 + of_seeds**2), 1)
    assert one.estimate == -0.75
    assert one.p_value == pytest.approx(2 * stats.t.sf(0.75 / variance**0.5, freedom), rel=1e-9)
    assert (one.low, one.high) == (-1.0, pytest.approx(min(1, -0.75 + stats.t.ppf(0.975, freedom) * variance**0.5)))


def simulate_pairs(
    first: float, second: float, num_seeds: int, num_tasks: int, own: float
) -> Iterator[tuple[list[Outcomes], list[Outcomes]]]:
    """Runs in pairs. The models that both of a pair began from lie ten points apart, and what each
    made of it `own`."""
    rng = np.random.default_rng([num_seeds, num_tasks, int(1000 * second), 7])
    logits = SimulatedSetting(first, own).logits(), SimulatedSetting(second, own).logits()
    _, shared = SimulatedSetting(first, 0.1).logits()
    for _ in range(NUM_SIMULATIONS):
        tasks_T = rng.normal(size=num_tasks) * DIFFICULTY
        shared_S = rng.normal(size=num_seeds) * shared
        one, other = (simulated_runs(rng, one, tasks_T, num_seeds, shared_S) for one in logits)
        yield one, other


def num_called_and_covered(found: list[Verdict], truth: float) -> tuple[int, int]:
    called = sum(one.decision in (Decision.BETTER, Decision.WORSE) for one in found)
    return called, sum(one.low <= truth <= one.high for one in found)


@pytest.mark.needs_large
@pytest.mark.parametrize("own", [0.0, 0.03])
@pytest.mark.parametrize(("num_seeds", "num_tasks"), [(2, 240), (3, 30), (5, 240)])
def test_equal_settings_in_pairs_are_called_different_in_one_of_twenty_at_most_and_the_interval_covers(
    num_seeds, num_tasks, own
):
    found = [paired_difference(*runs) for runs in simulate_pairs(0.3, 0.3, num_seeds, num_tasks, own)]
    called, covered = num_called_and_covered(found, 0.0)
    assert called <= 0.05 * NUM_SIMULATIONS
    assert covered >= 0.95 * NUM_SIMULATIONS


@pytest.mark.needs_large
@pytest.mark.parametrize("num_seeds", [2, 3, 5])
def test_pairs_that_lie_far_apart_for_tasks_to_matter_are_held_to_the_level_as_well(num_seeds):
    """Hardly anything but S differences of pairs is left then: a t test, of which the level is one
    of twenty and not less, so a thousand of them may have two standard errors more, 64."""
    found = [paired_difference(*runs) for runs in simulate_pairs(0.3, 0.3, num_seeds, 240, 0.06)]
    called, _ = num_called_and_covered(found, 0.0)
    assert called <= (0.05 + 2 * (0.05 * 0.95 / NUM_SIMULATIONS) ** 0.5) * NUM_SIMULATIONS


@pytest.mark.needs_large
def test_ten_points_under_a_shared_seed_are_found_by_pairs_and_hardly_without():
    runs = list(simulate_pairs(0.3, 0.4, 5, 240, 0.03))
    paired, unpaired = ([way(*one) for one in runs] for way in (paired_difference, difference))
    assert Counter(one.decision for one in paired)[Decision.BETTER] >= 0.8 * NUM_SIMULATIONS
    assert Counter(one.decision for one in unpaired)[Decision.BETTER] <= 0.4 * NUM_SIMULATIONS
    assert num_called_and_covered(paired, 0.1)[1] >= 0.93 * NUM_SIMULATIONS
    # Each says about what it could have shown, and that is near what was there to be shown.
    assert np.median([one.smallest_shown for one in paired]) == pytest.approx(0.09, abs=0.02)


def test_pairs_by_hand():
    """d is ((1, 0), (0, 0)): means of tasks 1/2 and 0, of pairs 1/2 and 0, the mean of all 1/4."""
    baseline = [{"a": 0.0, "b": 1.0}, {"a": 1.0, "b": 1.0}]
    other = [{"a": 1.0, "b": 1.0}, {"a": 1.0, "b": 1.0}]
    one = paired_difference(baseline, other)
    # Tasks: variance 1/8, but at least 1/2 (one play of one task won), over 2. Pairs: 1/8 over 2.
    # Rest: residuals all 1/4, their mean square 4/16, over 2 x 2.
    of_tasks, of_pairs, of_rest = max(0.125, 0.5) / 2, 0.125 / 2, 0.25 / 4
    variance = of_tasks + max(0, of_pairs - of_rest)
    freedom = max(variance**2 / (of_tasks**2 + max(of_pairs, of_rest) ** 2), 1)
    assert (one.estimate, one.num_seeds, one.num_tasks) == (0.25, (2, 2), 2)
    assert one.p_value == pytest.approx(2 * stats.t.sf(0.25 / variance**0.5, freedom), rel=1e-9)


def test_what_a_seed_adds_to_both_is_no_chance_of_a_pair():
    """Seeds 60 points apart, and of each the other wins eight to twelve tasks more."""
    baseline = [{str(task): float(task < limit) for task in range(100)} for limit in (10, 40, 70)]
    other = [
        {str(task): float(task < limit or task >= least) for task in range(100)}
        for limit, least in ((10, 92), (40, 90), (70, 88))
    ]
    assert paired_difference(baseline, other).decision is Decision.BETTER
    assert difference(baseline, other).decision is Decision.NEEDS_MORE
    assert paired_difference(baseline, other).estimate == pytest.approx(difference(baseline, other).estimate)


def test_one_pair_is_never_called_better_or_worse_and_what_is_no_pair_is_said():
    runs = [[{str(task): float(task < limit) for task in range(100)}] for limit in (10, 90)]
    one = paired_difference(*runs)
    assert (one.decision, one.is_of_runs_only, one.num_seeds) == (Decision.NEEDS_MORE, True, (1, 1))
    with pytest.raises(DataError, match="2 runs and 1 are no pairs"):
        paired_difference(runs[0] * 2, runs[1])


def test_only_tasks_that_all_runs_played_count():
    first = [{"a": 1.0, "b": 1.0, "c": 0.0}, {"a": 1.0, "b": 0.0, "d": 1.0}]
    second = [{"b": 1.0, "a": 0.0, "e": 1.0}]
    assert difference(first, second).num_tasks == 2
    assert difference(first, second).estimate == pytest.approx(0.5 - 0.75)


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        ([], [{"a": 1.0}], "without a run"),
        ([{"a": 1.0}], [{"b": 1.0}], "no tasks are common"),
        ([{"a": 1.0, "b": 1.0}], [{"b": 1.0}], "1 tasks are common"),
    ],
)
def test_what_cannot_be_compared_is_said(first, second, reason):
    with pytest.raises(DataError, match=reason):
        difference(first, second)


def test_where_no_play_differs_the_interval_has_a_width():
    same = [{str(task): 1.0 for task in range(8)}]
    one = difference(same * 3, same * 3)
    assert (one.estimate, one.low < -0.1, one.high > 0.1) == (0.0, True, True)


def test_a_family_is_corrected_by_holm():
    found = [
        Verdict(Decision.BETTER, 0.1, 0.0, 0.2, p_value, 0.1, 480, (3, 3)) for p_value in (0.04, 0.001, 0.03, 0.012)
    ]
    family = corrected(found)
    assert [round(one.p_value, 6) for one in family] == [0.06, 0.004, 0.06, 0.036]
    assert [one.decision for one in family] == [
        Decision.NEEDS_MORE,
        Decision.BETTER,
        Decision.NEEDS_MORE,
        Decision.BETTER,
    ]
    assert corrected([]) == []


def test_shares_have_wilsons_interval_and_never_none():
    for num_successes, num in ((0, 8), (3, 8), (432, 480), (480, 480)):
        wilson = stats.binomtest(num_successes, num).proportion_ci(method="wilson")
        assert share_interval(num_successes, num) == pytest.approx((wilson.low, wilson.high), abs=1e-12)
    assert round(share_interval(0, 8)[1], 2) == 0.32
    with pytest.raises(ValueError, match="nothing"):
        share_interval(0, 0)


def test_a_settings_mean_counts_its_seeds():
    runs = [{str(task): float(task < limit) for task in range(100)} for limit in (80, 90)]
    assert mean_interval(runs[:1]) == (0.8, *share_interval(80, 100))
    mean, low, high = mean_interval(runs)
    assert mean == pytest.approx(0.85)
    assert high - low > 0.3  # two seeds ten points apart say little
    assert (spread_over([0.8, 0.9]), spread_over([0.8])) == (Spread(pytest.approx(0.0707, abs=1e-4), 2), None)
