import numpy as np
import pytest

from posttrain.evals.groups import Group, are_equal, group_metrics, pass_hat_k


def group(*rewards: float, successes: int) -> Group:
    return Group(rewards, [index < successes for index in range(len(rewards))])


def test_one_spread_group_and_one_equal_group_by_hand():
    metrics = group_metrics([group(0, 1, successes=1), group(1, 1, successes=2)])
    # stds within: sqrt(((0 - .5)^2 + (1 - .5)^2) / 1) = 0.7071 and 0; of the batch 0, 1, 1, 1:
    # sqrt((9/16 + 3/16) / 3) = 0.5
    assert metrics["reward_std"] == pytest.approx(0.5**0.5 / 2)
    assert metrics["reward_std_batch"] == pytest.approx(0.5)
    assert metrics["reward_mean"] == 0.75
    assert metrics["frac_reward_zero_std"] == metrics["frac_reward_zero_std_all_good"] == 0.5
    assert metrics["frac_reward_zero_std_all_bad"] == metrics["frac_reward_zero_std_other"] == 0.0


def test_equal_groups_are_split_by_who_succeeded():
    equal = [
        group(0.1, 0.1, successes=0),
        group(1.0, 1.0, successes=2),
        group(0.5, 0.5, successes=1),
        group(0.1, 0.2, successes=0),
    ]
    metrics = group_metrics(equal)
    assert metrics["frac_reward_zero_std"] == 0.75
    assert [metrics[f"frac_reward_zero_std_{part}"] for part in ("all_bad", "all_good", "other")] == [0.25, 0.25, 0.25]


@pytest.mark.parametrize("tenths", range(11))
def test_eight_equal_rewards_are_equal_whatever_float32_says_of_their_std(tenths):
    rewards = np.full(8, tenths / 10, dtype=np.float32)
    assert are_equal(rewards)


def test_rewards_that_differ_by_rounding_are_equal_and_others_are_not():
    assert are_equal([0.3, 0.1 + 0.2])
    assert are_equal([-0.3, -0.2 - 0.1])
    assert are_equal([1e6, 1e6 + 1e-7])
    assert not are_equal([0.2, 0.2 + 1e-9])


def test_groups_may_differ_in_size():
    metrics = group_metrics([group(0, 0, 0, successes=0), group(0, 2, successes=1)])
    assert metrics["reward_std"] == pytest.approx(2**0.5 / 2)


def test_every_result_names_its_definition():
    assert group_metrics([group(0, 1, successes=1)])["definition_version"] == 2


@pytest.mark.parametrize("groups", [[], [group(1.0, successes=1)], [Group([0.0, 1.0], [True])]])
def test_a_group_without_a_spread_to_measure_is_refused(groups):
    with pytest.raises(ValueError, match="two or more rewards"):
        group_metrics(groups)


@pytest.mark.parametrize(("k", "value"), [(1, 3 / 4), (2, 3 / 6), (3, 1 / 4), (4, 0.0)])
def test_three_of_four_successes_by_hand(k, value):
    # C(3, k) / C(4, k): 3/4, 3/6, 1/4, 0/1
    assert pass_hat_k([[True, True, False, True]], k) == value


def test_tasks_count_alike():
    assert pass_hat_k([[True] * 4, [True, False]], 2) == 0.5  # (1 + 0) / 2


@pytest.mark.parametrize(("samples", "k"), [([[True, True]], 3), ([], 1), ([[True]], 0)])
def test_more_draws_than_samples_are_refused(samples, k):
    with pytest.raises(ValueError, match="samples of each task"):
        pass_hat_k(samples, k)
