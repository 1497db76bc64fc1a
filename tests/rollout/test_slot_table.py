import numpy as np

from posttrain.rollout.engines.protocol import GenerateRequest
from posttrain.rollout.engines.slot_table import Prefix, SlotTable


def table_with(*contexts, num_slots=4):
    """One episode a context, named a, b, c …, each with its context cached but for the last
    token."""
    table = SlotTable(num_slots, 12)
    for name, context in zip("abcd", contexts, strict=False):
        table.take(name, seed=ord(name))
        table.begin(GenerateRequest(name, context, 3, 1.0, ord(name), frozenset({9})))
    table.num_cached_S[: len(contexts)] = [len(context) - 1 for context in contexts]
    return table


def test_a_freed_slot_is_filled_by_the_last_one():
    table = table_with([1, 2], [3, 4], [5, 6])
    assert table.free("a") == (2, 0)
    assert (table.slot_of("c"), table.slot_of("b"), table.slot_of("a"), table.num_used) == (0, 1, None, 2)
    assert table.token_S_C[0, :2].tolist() == [5, 6]
    assert table.free("b") == (1, 1)
    assert table.is_writing_S.tolist() == [True, False, False, False]


def test_a_message_ends_with_a_stop_token_or_at_its_limit():
    table = table_with([1, 2], [3, 4, 5])
    assert table.append(np.array([7, 9]), np.array([-1.0, -2.0], np.float32)).tolist() == [1]
    assert table.message(1) == ([9], [-2.0], True)
    assert table.append(np.array([7, 8]), np.array([-1.0, -3.0], np.float32)).tolist() == []
    assert table.append(np.array([6, 8]), np.array([-0.5, -3.0], np.float32)).tolist() == [0]
    assert table.message(0) == ([7, 7, 6], [-1.0, -1.0, -0.5], False)
    assert table.length_S.tolist() == [5, 4, 0, 0]
    assert table.num_cached_S.tolist() == [4, 3, 0, 0]


def test_only_what_the_context_shares_with_its_slot_stays_cached():
    table = table_with([1, 2, 3, 4, 5])
    for context, num_cached in [([1, 2, 3, 4, 5, 6, 7], 4), ([1, 2, 8, 4, 5], 2), ([1, 2], 1), ([8], 0)]:
        table.num_cached_S[0] = 4
        table.token_S_C[0, :5] = [1, 2, 3, 4, 5]
        table.begin(GenerateRequest("a", context, 3, 1.0, 0, frozenset({9})))
        assert table.num_cached_S[0] == num_cached


def test_the_longest_common_prefix_counts_only_what_is_available_and_never_the_last_token():
    table = table_with([1, 2, 3, 4], [1, 2, 3, 5, 6], [1, 2, 3, 5, 6])
    assert table.longest_prefix(2, table.num_cached_S * [1, 1, 0, 0]) == Prefix(1, 4)
    assert table.longest_prefix(2, np.array([3, 2, 0, 0])) == Prefix(0, 3)
    assert table.longest_prefix(2, np.zeros(4, np.int64)).length == 0


def test_an_episodes_stream_depends_on_its_seed_alone():
    one, other = SlotTable(2, 12), SlotTable(3, 12)
    one.take("a", seed=1)
    one.take("b", seed=2)
    other.take("c", seed=2)
    assert (one.draw_S_C[1] == other.draw_S_C[0]).all()
    assert (one.draw_S_C[0] != one.draw_S_C[1]).all()
