"""Rows cut into parts by tokens, and dealt to processes."""

import numpy as np
import pytest

from posttrain.models.micro_batches import AtOnce, cut_alike, cut_by_length, dealt

LENGTHS = [[2, 9, 3, 4], [50], [1] * 7, [10, 20, 30, 40, 50, 60, 70]]


def test_a_part_is_as_full_as_the_limits_allow():
    assert cut_by_length([2, 9, 3, 4], AtOnce(tokens=8)) == [[0, 2], [3], [1]], "a row of 9 goes alone"
    assert cut_by_length([2, 9, 3, 4], AtOnce(tokens=12)) == [[0, 2, 3], [1]]
    assert cut_by_length([2, 9, 3, 4], AtOnce(rows=2, tokens=12)) == [[0, 2], [3], [1]]
    assert cut_by_length([2, 9, 3, 4], AtOnce(rows=3)) == [[0, 2, 3], [1]]
    assert cut_by_length([2, 9, 3, 4], AtOnce()) == [[0, 2, 3, 1]]
    assert cut_by_length([], AtOnce(tokens=8)) == []


def test_a_pair_is_two_rows_and_one_goes_always():
    assert AtOnce(rows=5, tokens=101).in_pairs == AtOnce(2, 50)
    assert AtOnce(rows=1).in_pairs == AtOnce(1)
    assert AtOnce(tokens=4096).num_rows(1024, 32) == 4
    assert AtOnce(tokens=100).num_rows(1024, 32) == 1
    assert AtOnce(rows=3, tokens=4096).num_rows(1024, 32) == 3
    assert AtOnce().num_rows(1024, 32) == 32


@pytest.mark.parametrize("tokens", [1, 60, 150, 10_000])
@pytest.mark.parametrize("first", LENGTHS)
@pytest.mark.parametrize("second", LENGTHS)
def test_processes_have_as_many_parts_within_the_limit_and_every_row_once(first, second, tokens):
    parts_of = cut_alike([first, second], AtOnce(tokens=tokens))
    assert len(parts_of[0]) == len(parts_of[1])
    for lengths, parts in zip((first, second), parts_of, strict=True):
        assert sorted(place for part in parts for place in part) == list(range(len(lengths)))
        assert all(len(part) * max(lengths[place] for place in part) <= max(tokens, *lengths) for part in parts if part)
    if len(first) == len(second):
        assert [len(part) for part in parts_of[0]] == [len(part) for part in parts_of[1]], "TRL gathers rows of a part"


def test_rows_are_dealt_so_that_all_processes_have_about_as_many_tokens():
    assert dealt(5, 2) == [[0, 3, 4], [1, 2]]
    assert dealt(1, 3) == [[0], [], []]
    lengths = np.sort(np.exp(np.random.default_rng(0).uniform(np.log(50), np.log(2000), 64)))[::-1]
    for count in (2, 4, 8):
        shares = [lengths[places].sum() for places in dealt(64, count)]
        assert max(shares) - min(shares) <= lengths[0]
        assert {len(places) for places in dealt(64, count)} == {64 // count}
