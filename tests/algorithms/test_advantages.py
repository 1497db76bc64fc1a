import numpy as np
import pytest

from posttrain.algorithms.advantages import group_advantages


def test_the_advantage_is_the_distance_from_the_group_mean_in_standard_deviations():
    # Group 1: mean 1/4; squared distances 9/16 + 3/16 = 12/16, over G-1 = 3 gives 1/4, std 1/2:
    # 0.75/0.5 = 1.5, -0.25/0.5 = -0.5. Group 2: mean 2; squared distances 1 + 1 + 0 + 0 = 2, over
    # 3, std 0.8165: +-1/0.8165 = +-1.2247.
    rewards_P_G = np.array([[1.0, 0.0, 0.0, 0.0], [1.0, 3.0, 2.0, 2.0]])

    advantages_P_G = group_advantages(rewards_P_G, scale="group_std")

    assert advantages_P_G[0] == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=4e-4)
    assert advantages_P_G[1] == pytest.approx([-1.2247, 1.2247, 0, 0], abs=4e-4)


def test_without_the_division_only_the_group_mean_is_taken_away():
    assert group_advantages(np.array([[1.0, 0.0, 0.0, 0.0]]), scale="group_mean").tolist() == [
        [0.75, -0.25, -0.25, -0.25]
    ]


@pytest.mark.parametrize("reward", [0.1, 0.2, 0.3, 0.7, -0.35])
def test_a_group_of_equal_rewards_has_an_advantage_of_exactly_zero(reward):
    rewards_P_G = np.full((2, 8), reward)

    for scale in ("group_std", "group_mean"):
        assert np.array_equal(group_advantages(rewards_P_G, scale=scale), np.zeros((2, 8)))


def test_a_difference_in_the_last_bit_is_rounding_and_a_larger_one_is_not():
    nearly = np.nextafter(0.2, 1.0)

    advantages_P_G = group_advantages(np.array([[0.2, 0.2], [0.2, nearly], [0.2, 0.2 + 1e-9]]), scale="group_mean")

    assert (advantages_P_G != 0).any(axis=1).tolist() == [False, False, True]


@pytest.mark.parametrize("scale", ["group_std", "group_mean"])
def test_a_lost_episode_is_left_out_of_its_group(scale):
    rewards_P_G = np.array([[1.0, 9.0, 0.0, 0.0], [5.0, 1.0, 1.0, 7.0], [3.0, 1.0, 1.0, 1.0]])
    is_lost_P_G = np.array([[0, 1, 0, 0], [1, 0, 0, 1], [0, 1, 1, 1]], bool)

    advantages_P_G = group_advantages(rewards_P_G, scale=scale, is_lost_P_G=is_lost_P_G)

    [alone] = group_advantages(np.array([[1.0, 0.0, 0.0]]), scale=scale)
    assert np.array_equal(advantages_P_G[0], [alone[0], 0.0, alone[1], alone[2]])
    assert not advantages_P_G[1].any(), "those that are left are equal"
    assert not advantages_P_G[2].any(), "one is no group"


def test_a_group_does_not_see_another_group():
    alone = group_advantages(np.array([[1.0, 0.0]]), scale="group_std")
    together = group_advantages(np.array([[1.0, 0.0], [100.0, -100.0]]), scale="group_std")

    assert np.array_equal(alone[0], together[0])


def test_a_reward_that_is_not_a_number_is_refused_with_its_place():
    with pytest.raises(ValueError, match="episode 1 of task 1 is nan"):
        group_advantages(np.array([[1.0, 0.0], [1.0, np.nan]]), scale="group_mean")


def test_one_episode_has_no_group():
    with pytest.raises(ValueError, match="at least 2 episodes"):
        group_advantages(np.array([[1.0]]), scale="group_std")
