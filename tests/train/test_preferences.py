from dataclasses import replace

import pytest

from posttrain.data.importing.importer import import_trajectories
from posttrain.data.preferences import Pair, Said, read_pairs, write_pairs
from posttrain.data.schemas import TrajectoryRow
from posttrain.train.preference_pairs import PairKind, all_pairs_of, composition, kind_of, pairs_of
from posttrain.types import Message, Outcome, StopReason, Trajectory


def episode(task_id, reward, said="x"):
    played = Trajectory(
        task_id,
        (Message("user", "?"), Message("assistant", said)),
        StopReason.DONE,
        token_ids=(1, 2),
        mask=(0, 1),
        reward=reward,
    )
    return TrajectoryRow(played, {}, "rl", "plain", (), ({"type": "function"},))


def best_and_worst(rows):
    return pairs_of(rows, "best_worst")


def closest(rows):
    return pairs_of(rows, "closest")


PLAIN, STRICT = Outcome(True, False), Outcome(True, True)
FAILED = Outcome(False, False)


def graded(reward, outcome, said="x", mask=(0, 1)):
    row = episode("t", reward, said)
    played = replace(row.trajectory, outcome=outcome, token_ids=tuple(range(len(mask))), mask=mask)
    return replace(row, trajectory=played)


def test_a_lost_episode_is_in_no_pair_whatever_it_earned():
    good, bad = episode("t", 1.0), episode("t", 0.0)
    lost = replace(bad, trajectory=replace(bad.trajectory, reward=None, stop_reason=StopReason.TOOL_FAILED))

    assert best_and_worst([good, lost]) == []


def test_of_equal_episodes_the_earlier_is_taken():
    rows = [episode("t", 0.2, "a"), episode("t", 1.0, "b"), episode("t", 0.2, "c"), episode("t", 1.0, "d")]

    assert best_and_worst(rows) == [Pair(rows[1], rows[0])]


def test_a_last_bit_is_no_difference_between_rewards():
    rows = [graded(0.3, FAILED, "a"), graded(0.1 + 0.2, FAILED, "b")]
    assert rows[0].trajectory.reward != rows[1].trajectory.reward

    assert best_and_worst(rows) == closest(rows) == []


@pytest.mark.parametrize("rule", ["best_worst", "closest"])
def test_episodes_of_different_tasks_are_never_compared(rule):
    assert pairs_of([episode("easy", 1.0), episode("hard", 0.0)], rule) == []


def test_the_closest_success_and_failure_make_the_pair_however_close_others_are():
    best, success = graded(1.0, STRICT, "a"), graded(0.7, PLAIN, "b")
    failure, worst = graded(0.3, FAILED, "c"), graded(0.0, FAILED, "d")
    rows = [worst, success, failure, best, graded(0.29, FAILED, "e")]

    assert closest(rows) == [Pair(success, failure)]  # 0.4 apart; 0.3 over 0.29 and 1.0 over 0.7 are closer
    assert best_and_worst(rows) == [Pair(best, worst)]


def test_among_successes_a_strict_one_over_a_plain_one_comes_first():
    strict, better, plain = graded(1.0, STRICT, "a"), graded(0.99, STRICT, "b"), graded(0.7, PLAIN, "c")
    lesser = graded(0.6, PLAIN, "d")

    assert closest([strict, better, plain, lesser]) == [Pair(better, plain)]  # 0.29; of one kind 0.01 and 0.1
    assert closest([strict, better]) == [Pair(strict, better)]


def test_failures_alone_make_the_pair_with_the_smallest_difference():
    rows = [graded(0.0, FAILED, "a"), graded(0.3, FAILED, "b"), graded(0.2, FAILED, "c"), graded(0.2, FAILED, "d")]

    assert closest(rows) == [Pair(rows[1], rows[2])]  # the earlier of two that are 0.1 below


def test_the_composition_counts_each_kind_the_gaps_and_the_agents_tokens():
    pairs = [
        Pair(graded(1.0, STRICT, mask=(0, 1, 1)), graded(0.0, FAILED, mask=(0, 1, 1, 1, 1))),
        Pair(graded(0.3, FAILED, mask=(1, 1, 1, 0, 1, 1, 1)), graded(0.1, FAILED, mask=(1, 1, 1, 1))),
        Pair(graded(1.0, STRICT, mask=(0, 1)), graded(0.7, PLAIN, mask=(0, 1))),
    ]

    assert composition(pairs) == pytest.approx(
        {
            "num_success_over_failure": 1,
            "num_strict_over_plain": 1,
            "num_both_succeed": 0,
            "num_both_fail": 1,
            "num_failure_over_success": 0,
            "num_said": 0,
            "reward_gap_mean": 0.5,  # of 1.0, 0.2 and 0.3
            "reward_gap_min": 0.2,
            "reward_gap_max": 1.0,
            "chosen_tokens_mean": 3.0,  # of 2, 6 and 1
            "rejected_tokens_mean": 3.0,  # of 4, 4 and 1
        }
    )


def test_pairs_that_somebody_said_have_no_gap():
    said = Pair(graded(None, None), graded(None, None), Said("import", "ann"))
    found = composition([said])
    assert (found["num_said"], "reward_gap_mean" in found) == (1, False)


def test_all_pairs_of_a_task_are_those_whose_rewards_differ():
    rows = [episode("t", 1.0, "a"), episode("t", 0.0, "b"), episode("t", 1.0, "c")]
    assert all_pairs_of(rows) == [Pair(rows[0], rows[1]), Pair(rows[2], rows[1])]


def test_a_world_whose_own_reward_is_above_a_successs_for_a_failure_is_told_of():
    assert kind_of(Pair(graded(2.0, FAILED), graded(1.0, PLAIN))) is PairKind.FAILURE_OVER_SUCCESS
    assert closest([graded(2.0, FAILED, "a"), graded(1.5, PLAIN, "b"), graded(0.0, FAILED, "c")])[0].chosen == graded(
        1.5, PLAIN, "b"
    )


@pytest.mark.parametrize("rule", ["best_worst", "closest"])
def test_an_episode_without_a_reward_is_refused(rule):
    with pytest.raises(ValueError, match="1 of 2 episodes have no reward"):
        pairs_of([episode("t", 1.0), episode("t", None)], rule)


def test_pairs_come_back_from_their_file(tmp_path):
    pairs = best_and_worst(
        [episode("t", 0.25, "bad"), episode("t", 1.0, "好"), episode("u", 0.5), episode("u", 0.75, "ok")]
    )

    write_pairs(tmp_path / "pairs.parquet", pairs)

    assert read_pairs(tmp_path / "pairs.parquet") == pairs
    assert len(pairs) == 2


def test_real_trajectories_with_rewards_make_pairs(shared_data, tmp_path):
    # 50 tasks, 4 plays each: 0.48 of the tasks are ties (0.28 nobody, 0.20 everybody), so 26 pairs.
    pairs = best_and_worst(import_trajectories(shared_data / "tau_bench/gpt-4o-airline.json").rows)
    write_pairs(tmp_path / "pairs.parquet", pairs)

    assert len(pairs) == 26
    assert {(pair.chosen.trajectory.reward, pair.rejected.trajectory.reward) for pair in pairs} == {(1.0, 0.0)}
    assert read_pairs(tmp_path / "pairs.parquet") == pairs


def test_all_pairs_of_a_task_count_together_as_one():
    rows = [episode("t", reward) for reward in (1.0, 0.5, 0.0)] + [episode("u", reward) for reward in (1.0, 0.0, 0.0)]
    found = pairs_of([*rows, episode("v", 1.0)], "all")
    assert [(one.chosen, one.rejected) for one in found[:3]] == [
        (rows[0], rows[1]),
        (rows[0], rows[2]),
        (rows[1], rows[2]),
    ]
    assert [one.weight for one in found] == [1 / 3] * 3 + [1 / 2] * 2
