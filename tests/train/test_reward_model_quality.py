import math

import pytest

from posttrain.evals.significance import share_interval
from posttrain.train.reward_model_quality import (
    accuracy_interval,
    best_of,
    counting_accuracy,
    expected_calibration_error,
    pair_accuracy,
    reliability,
    reward_bench,
)


def test_a_tie_counts_as_half_a_right_answer():
    assert pair_accuracy([2.0, -1.0, 0.0, 3.0]) == 2.5 / 4


def test_no_pairs_are_no_accuracy():
    assert math.isnan(pair_accuracy([]))


def test_a_counting_baseline_learns_its_direction_on_the_training_pairs_and_keeps_it():
    # In training the better one is shorter twice of three times, so shorter wins; held out, shorter
    # is right once of two.
    assert counting_accuracy([-10, -5, 3], [-1, 2]) == 0.5
    assert counting_accuracy([-10, -5, 3], [-1, -2]) == 1.0
    assert counting_accuracy([10, 5, -3], [-1, -2]) == 0.0


def test_the_model_is_calibrated_where_it_is_right_as_often_as_it_is_sure():
    # sigmoid(ln 3) = 0.75: four pairs with that confidence, three of them right, one wrong.
    margin = math.log(3)
    bins = reliability([margin, margin, margin, -margin])

    assert [(found.low, found.high, found.num_pairs, found.accuracy) for found in bins] == [(0.7, 0.8, 4, 0.75)]
    assert bins[0].confidence == pytest.approx(0.75)
    assert expected_calibration_error(bins) == pytest.approx(0.0)


def test_overconfidence_is_the_distance_from_confidence_to_accuracy():
    # sigmoid(ln 3) = 0.75, all four right: off by 0.25. sigmoid(ln 19) = 0.95, one of two right:
    # off by 0.45. (4 x 0.25 + 2 x 0.45) / 6.
    bins = reliability([math.log(3)] * 4 + [math.log(19), -math.log(19)])

    assert expected_calibration_error(bins) == pytest.approx((1.0 + 0.9) / 6)


def test_best_of_two_is_compared_with_taking_any_the_first_and_an_oracle():
    # Task 1: the second is picked and right. Task 2, two groups: the first pick is wrong though the
    # other was right; nobody was right in the second.
    found = best_of([[0.1, 0.9], [0.5, 0.4, 0.1, 0.2]], [[False, True], [False, True, False, False]], num_samples=2)

    assert found == {"num_groups": 3, "picked": 1 / 3, "random": 1 / 3, "first": 0.0, "oracle": 2 / 3}


def test_groups_that_are_not_full_are_not_judged():
    with pytest.raises(ValueError, match="none with 4 episodes"):
        best_of([[0.1, 0.2]], [[True, False]], num_samples=4)


def test_pairs_of_one_task_count_for_as_much_as_they_vary():
    apart = accuracy_interval([1.0, 1.0, -1.0, 1.0] * 25, [str(place) for place in range(100)])
    assert apart == pytest.approx(share_interval(75, 100), abs=2e-3)
    together = accuracy_interval([1.0] * 75 + [-1.0] * 25, [str(place // 25) for place in range(100)])
    assert together == pytest.approx(share_interval(2.25, 3))  # four tasks, each all right or all wrong: 3 degrees
    assert accuracy_interval([1.0, 1.0], ["a", "b"]) == share_interval(2, 2)
    assert all(map(math.isnan, accuracy_interval([], [])))


def test_a_right_episode_is_above_three_wrong_ones_by_the_share_of_all_choices():
    scores, right = [3.0, 1.0, 2.0, 0.0, 0.0], [True, False, False, False, False]
    assert reward_bench([scores], [right]) == {"num_tasks": 1, "accuracy": 1.0}
    # 1.5 is above three of four: one of four choices of three
    assert reward_bench([[1.5, *scores[1:]], scores], [right, right])["accuracy"] == pytest.approx((1 / 4 + 1) / 2)
    assert reward_bench([[1.0, 0.0]], [[True, False]]) == {"num_tasks": 0, "accuracy": None}
