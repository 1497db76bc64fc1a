"""Advantages of whole episodes: numbers worked out on paper, what must not change them, and their
expected gradient on a problem that is enumerated in full."""

import numpy as np
import pytest

from benchmarks.advantages import table
from posttrain.train.advantages.credit import EpisodeCredit
from posttrain.train.advantages.groups import Group
from tests.train.online.bandit import LOGITS, expected_gradient, true_gradient, ways

STD = {"type": "group_std", "floor": 1e-4}
NONE = {"type": "none"}
BASELINES = {
    "nothing": {"type": "nothing"},
    "group_mean": {"type": "group_mean"},
    "leave_one_out": {"type": "leave_one_out"},
    "virtual_best": {"type": "virtual_best", "best": 1.0},
    "batch_mean": {"type": "batch_mean"},
}
SCALES = {"none": NONE, "group_std": STD, "batch_std": {"type": "batch_std", "floor": 1e-4}}


def credit(baseline="group_mean", scale="none", drop="none", **knobs):
    values = {"type": "episode", "baseline": BASELINES[baseline] | knobs, "scale": SCALES[scale], "drop": drop}
    values["equal_groups"] = {"type": "by_baseline"}
    return EpisodeCredit.model_validate(values)


def group(*rewards, successes=None):
    rewards_G = np.array(rewards, float)
    return Group("t", rewards_G, rewards_G == 1 if successes is None else np.array(successes))


def advantages(rule, *groups):
    return [one.tolist() for one in rule.compared(groups)]


# -- by hand


def test_a_group_is_compared_with_its_own_mean():
    assert advantages(credit(), group(1, 0, 0, 0)) == [[0.75, -0.25, -0.25, -0.25]]
    assert advantages(credit(scale="group_std"), group(1, 0, 0, 0))[0] == pytest.approx(
        [0.75 / 0.5001, *[-0.25 / 0.5001] * 3]
    )


def test_compared_with_nothing_each_counts_what_it_earned():
    assert advantages(credit("nothing"), group(1, 0, 0.5, 0), group(1, 1), group(0, 0)) == [
        [1.0, 0.0, 0.5, 0.0],
        [1.0, 1.0],
        [0.0, 0.0],
    ]


def test_without_its_own_reward_each_is_compared_with_the_others():
    [found] = advantages(credit("leave_one_out"), group(1, 0, 0, 0))
    assert found == pytest.approx([1, *[-1 / 3] * 3])


def test_a_virtual_best_gives_an_all_bad_group_minus_one_over_the_root_of_g_plus_one():
    rule = credit("virtual_best", "group_std")
    for size in (4, 8, 16):
        [found] = advantages(rule, group(*[0] * size))
        assert found == pytest.approx([-1 / np.sqrt(size + 1)] * size, rel=1e-3)
    [found] = advantages(rule, group(*[0.9625] * 8))  # whatever the gap to the best
    assert found == pytest.approx([-1 / 3] * 8, rel=1e-2)


def test_all_good_is_a_test_of_success_and_not_of_reward():
    rule = credit("virtual_best", "group_std", drop="all_good")
    good = group(0.9, 0.8, 0.9, 0.9, successes=[True] * 4)
    assert advantages(rule, good) == [[0.0] * 4]
    assert any(advantages(rule, group(0.9, 0.8, 0.9, 0.9, successes=[True] * 3 + [False]))[0])


def test_the_batch_mean_compares_tasks_with_each_other():
    assert advantages(credit("batch_mean"), group(1, 1), group(0, 0)) == [[0.5, 0.5], [-0.5, -0.5]]


def test_the_scale_is_of_the_group_or_of_the_batch():
    [first, _] = advantages(credit(scale="batch_std"), group(1, 0), group(0, 0))
    assert first == pytest.approx([0.5 / (0.5 + 1e-4), -0.5 / (0.5 + 1e-4)])


# -- what must hold of all


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("baseline", ["group_mean", "leave_one_out", "batch_mean"])
def test_the_same_for_all_rewards_raised_alike(baseline, scale):
    rule, rng = credit(baseline, scale), np.random.default_rng(1)
    rewards = rng.random((3, 5))
    plain = advantages(rule, *(group(*row) for row in rewards))
    raised = advantages(rule, *(group(*(row + 7)) for row in rewards))
    np.testing.assert_allclose(plain, raised, atol=1e-12)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("baseline", BASELINES)
def test_the_order_of_members_and_of_groups_changes_nothing(baseline, scale):
    rule = credit(baseline, scale)
    rewards = np.random.default_rng(2).random((3, 5))
    plain = advantages(rule, *(group(*row) for row in rewards))
    turned = advantages(rule, *(group(*rewards[place][::-1]) for place in (2, 0, 1)))
    np.testing.assert_allclose([plain[place][::-1] for place in (2, 0, 1)], turned, atol=1e-12)


def test_rewards_that_differ_by_rounding_teach_nothing():
    [found] = advantages(credit(scale="group_std"), group(-0.3, -0.2 - 0.1, -0.3))
    assert found == [0.0] * 3


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("baseline", BASELINES)
def test_a_group_of_one_teaches_nothing_and_is_in_no_batch(baseline, scale):
    rule = credit(baseline, scale)
    with_one = advantages(rule, group(1, 0), group(5e-1), group())
    assert with_one[1:] == [[0.0], []]
    assert with_one[0] == advantages(rule, group(1, 0))[0]


STEPS = {
    "mixed": lambda rng: [rng.random(rng.integers(2, 9)) for _ in range(rng.integers(1, 5))],
    "one in many": lambda rng: [np.eye(1, rng.integers(2, 9), dtype=float)[0] for _ in range(rng.integers(1, 5))],
    "equal": lambda rng: [np.full(rng.integers(2, 9), rng.random()) for _ in range(rng.integers(1, 5))],
    "a whole step": lambda rng: [np.full(rng.integers(2, 9), 0.9625) for _ in range(rng.integers(1, 5))],
    "nearly equal": lambda rng: [
        0.5 + 10.0 ** rng.integers(-9, -4) * rng.random(rng.integers(2, 9)) for _ in range(rng.integers(1, 5))
    ],
}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("scale", ["group_std", "batch_std"])
@pytest.mark.parametrize("baseline", BASELINES)
def test_over_a_deviation_no_advantage_exceeds_the_root_of_how_many_were_compared(baseline, scale, step):
    """Advantages are bounded: of n numbers whose squares have a mean of one, none is above the root
    of n."""
    if (baseline, scale) == ("batch_mean", "group_std"):
        return  # refused
    rule, rng = credit(baseline, scale), np.random.default_rng(3)
    for _ in range(60):
        groups = [group(*rewards) for rewards in STEPS[step](rng)]
        num_step = sum(len(one.rewards_G) for one in groups)
        for one, found in zip(groups, advantages(rule, *groups), strict=True):
            num_compared = len(one.rewards_G) + (baseline == "virtual_best") if scale == "group_std" else num_step
            assert np.abs(found).max() <= np.sqrt(num_compared)


def test_a_deviation_is_around_the_baseline():
    """All earn 0.9 where nothing is the baseline: the root of 3 d^2 / 2 divides d."""
    [found] = advantages(credit("nothing", "group_std"), group(0.9, 0.9, 0.9))
    assert found == pytest.approx([0.9 / (0.9 * np.sqrt(3 / 2) + 1e-4)] * 3)
    # a step of 0.9 and 0.6 has the deviation of all four
    of_step = np.sqrt(2 * (0.9**2 + 0.6**2) / 3) + 1e-4
    found = advantages(credit("nothing", "batch_std"), group(0.9, 0.9), group(0.6, 0.6))
    np.testing.assert_allclose(found, [[0.9 / of_step] * 2, [0.6 / of_step] * 2])


@pytest.mark.parametrize("scale", ["none", "group_std", "batch_std"])
def test_rewards_that_are_the_baseline_teach_nothing_whatever_it_is(scale):
    """The mean of three times 0.1 is 0.1 but for rounding."""
    assert advantages(credit("group_mean", scale), group(0.1, 0.1, 0.1)) == [[0.0] * 3]
    assert advantages(credit("nothing", scale), group(0.0, 0.0)) == [[0.0] * 2]
    assert advantages(credit("virtual_best", scale, best=0.1), group(0.1, 0.1)) == [[0.0] * 2]


def test_the_default_is_what_it_was_bit_by_bit():
    rng, rule = np.random.default_rng(4), credit(scale="group_std")
    for size in range(2, 17):
        rewards = rng.random(size)
        [found] = advantages(rule, group(*rewards))
        assert found == ((rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-4)).tolist()


def test_who_earns_more_than_the_virtual_best_is_refused():
    with pytest.raises(ValueError, match=r"1\.2, more than the virtual best of 1"):
        advantages(credit("virtual_best"), group(1.2, 0))


# -- the expected gradient, enumerated


def share_of_gradient(rule, *, size=3):
    """Expected gradient as a multiple of the true one; refuses one that is no multiple of it."""
    expected = expected_gradient(
        size,
        lambda rewards_G, turns_G: [
            [advantage] * turns
            for advantage, turns in zip(
                rule.compared([Group("t", rewards_G, rewards_G == 1)])[0],
                turns_G,
                strict=True,
            )
        ],
    )
    true = true_gradient()
    share = expected @ true / (true @ true)
    np.testing.assert_allclose(expected, share * true, atol=1e-9)
    return share


def test_the_true_gradient_is_that_of_finite_differences():
    def value(logits):
        return sum(way.probability * way.reward for way in ways(logits))

    small = 1e-6
    found = [
        (value(LOGITS + small * unit) - value(LOGITS - small * unit)) / (2 * small) for unit in np.eye(len(LOGITS))
    ]
    np.testing.assert_allclose(true_gradient(), found, atol=1e-9)


@pytest.mark.parametrize(
    ("baseline", "size", "share"),
    [
        ("group_mean", 2, 1 / 2),  # (G - 1) / G
        ("group_mean", 3, 2 / 3),
        ("nothing", 3, 1.0),
        ("leave_one_out", 3, 1.0),
        ("virtual_best", 3, 3 / 4),  # G / (G + 1)
        ("batch_mean", 3, 2 / 3),  # a batch of one group
    ],
)
def test_the_expected_gradient_is_the_share_of_the_true_one_that_the_docstring_says(baseline, size, share):
    assert share_of_gradient(credit(baseline), size=size) == pytest.approx(share, abs=1e-9)


def test_over_the_groups_own_deviation_it_is_no_multiple_of_the_true_gradient():
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        share_of_gradient(credit(scale="group_std"))


def test_the_table_of_the_benchmark_has_the_published_figures():
    found = {(row["method"], row["k"]): (row["right"], row["wrong"]) for row in table()}
    for (method, k), expected in {
        ("grpo", 1): (2.474, -0.353),
        ("grpo", 4): (0.935, -0.935),
        ("ngrpo", 0): (None, -0.333),
        ("ngrpo", 1): (1.764, -0.504),
        ("ngrpo", 4): (0.843, -1.054),
        ("ngrpo", 8): (0.0, None),
        ("rloo", 1): (1.0, -0.143),
        ("gdpo", 1): (2.475, -0.354),
        ("rl_zvp", 0): (None, 0.0),
        ("rl_zvp", 1): (2.474, -0.353),
        ("rl_zvp", 8): (0.05, None),
    }.items():
        assert [None if value is None else round(value, 3) for value in found[method, k]] == list(expected)
