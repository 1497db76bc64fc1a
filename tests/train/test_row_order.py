import numpy as np
import pytest

from posttrain.train.sample_order import largest_remainder, sort_within_batches, weighted_order

KINDS = ["common"] * 9 + ["rare"]


def test_kinds_are_drawn_by_their_weight_and_not_by_how_many_rows_they_have():
    order = weighted_order(KINDS, {"common": 0.6, "rare": 0.4}, count=50, seed=1)

    assert sum(KINDS[index] == "rare" for index in order) == 20


def test_every_row_of_a_kind_is_used_once_before_any_is_used_twice():
    order = weighted_order(KINDS, {"common": 1.0, "rare": 0.0}, count=13, seed=1)

    assert sorted(order[:9]) == list(range(9))
    assert len(set(order[9:])) == 4


def test_a_kind_without_rows_gives_its_share_to_the_others():
    # Weights .2 and .3 are left of 1: shares 2/5 and 3/5 of ten draws.
    order = weighted_order(["a", "b"], {"a": 0.2, "b": 0.3, "absent": 0.5}, count=10, seed=1)

    assert np.bincount(order).tolist() == [4, 6]


def test_rows_of_no_weighted_kind_are_refused_with_both():
    with pytest.raises(ValueError, match=r"kinds are \['common', 'rare'\], the weights \{'other': 1.0\}"):
        weighted_order(KINDS, {"other": 1.0}, count=1, seed=1)


def test_what_is_left_over_goes_to_the_largest_remainders():
    # 10 x .35 = 3.5, 10 x .30 = 3.0, 10 x .20 = 2.0, 10 x .15 = 1.5: one is left, and of the equal
    # remainders the first takes it.
    assert largest_remainder([0.35, 0.30, 0.20, 0.15], 10) == [4, 3, 2, 1]
    assert largest_remainder([1, 1, 1], 10) == [4, 3, 3]


def test_sorting_by_length_leaves_every_batch_with_its_rows():
    order = np.array([0, 1, 2, 3, 4])
    lengths = [5, 9, 7, 1, 3]

    assert sort_within_batches(order, lengths, batch_size=3).tolist() == [1, 2, 0, 4, 3]
