"""Credit against a critic: numbers worked out on paper, a sum written out, and the expected
gradient on a problem that is enumerated in full."""

import numpy as np
import pytest
import yaml

from posttrain.train.advantages.baselines import BatchStd
from posttrain.train.advantages.gae import GaeCredit, gae, whitened
from posttrain.train.advantages.groups import Group, Turn
from tests.train.online.bandit import REWARDS, expected_gradient, true_gradient, ways

VALUES = np.array([0.5, 0.25, 0.75])
NAN = np.nan


def credit(**knobs):
    return GaeCredit.model_validate(yaml.safe_load(GaeCredit.example) | {"type": "gae"} | knobs)


def group(rewards, turns, task_id="t"):
    rewards_G = np.array(rewards, float)
    turns_G = [[Turn(length, "", None) for length in lengths] for lengths in turns]
    return Group(task_id, rewards_G, rewards_G == 1, turns_G=turns_G)


def written_out(values, reward, gamma, lam):
    """Equation 16 of arXiv 1506.02438, as two sums."""
    last = len(values) - 1
    deltas = [(reward if k == last else gamma * values[k + 1]) - values[k] for k in range(last + 1)]
    return [sum((gamma * lam) ** (m - k) * deltas[m] for m in range(k, last + 1)) for k in range(last + 1)]


# -- by hand


def test_over_tokens_it_is_worked_out_by_hand():
    advantages, returns = gae(VALUES, [2, 1], 1.0, gamma=1.0, lam=0.5, over="tokens")
    assert advantages.tolist() == [1 / 16, 5 / 8, 1 / 4]
    assert returns.tolist() == [9 / 16, 7 / 8, 1.0]


def test_over_turns_each_token_has_its_turns_and_the_first_alone_is_learnt_from():
    advantages, returns = gae(VALUES, [2, 1], 1.0, gamma=1.0, lam=0.5, over="turns")
    assert advantages.tolist() == [3 / 8, 3 / 8, 1 / 4]
    np.testing.assert_array_equal(returns, [7 / 8, NAN, 1.0])


def test_returns_do_not_begin_anew_where_a_turn_does():
    """At every tool result they did elsewhere, and only the last turn heard of the reward."""
    values = np.zeros(6)
    for lengths in ([6], [1, 2, 3], [1] * 6):
        advantages, returns = gae(values, lengths, 1.0, gamma=1.0, lam=1.0, over="tokens")
        assert advantages.tolist() == returns.tolist() == [1.0] * 6
        discounted, _ = gae(values, lengths, 1.0, gamma=0.5, lam=1.0, over="tokens")
        assert discounted.tolist() == [1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0]


def test_an_episode_without_a_token_has_nothing():
    for over in ("tokens", "turns"):
        assert [one.tolist() for one in gae(np.zeros(0), [], 1.0, gamma=1.0, lam=0.5, over=over)] == [[], []]


def test_over_the_steps_tokens_it_is_whitened_by_hand():
    found = whitened([[np.array([1.0, 3.0])], [np.array([5.0])]], BatchStd(type="batch_std", floor=0.5))
    assert [[one.tolist() for one in members] for members in found] == [[[-2 / 2.5, 0.0]], [[2 / 2.5]]]
    for alone in ([[np.array([3.0])]], [[np.array([0.2, 0.2, 0.2])]], [[np.zeros(0)]], []):
        tokens = [token for members in whitened(alone, credit().scale) for one in members for token in one]
        assert tokens == pytest.approx([0.0] * len(tokens), abs=1e-9)


def test_a_step_is_credited_member_by_member_and_scaled_as_one():
    groups = [group([1, 0], [[2, 1], [1]]), group([1], [[1, 1]], "u")]
    values = [[VALUES, np.array([0.5])], [np.array([0.5, 0.5])]]
    plain, returns = credit(gamma=1.0, lam=0.5, scale={"type": "none"}).advantages_and_returns(groups, values)
    assert [one.tolist() for one in plain[0]] == [[1 / 16, 5 / 8, 1 / 4], [-0.5]]
    assert [one.tolist() for one in plain[1]] == [[1 / 4, 1 / 2]]
    assert [one.tolist() for one in returns[0]] == [[9 / 16, 7 / 8, 1.0], [0.0]]
    scaled, same = credit(gamma=1.0, lam=0.5).advantages_and_returns(groups, values)
    tokens = np.concatenate([one for members in scaled for one in members])
    assert [tokens.mean(), tokens.std(ddof=1)] == pytest.approx([0.0, 1.0], abs=1e-3)
    assert [one.tolist() for one in same[0]] == [one.tolist() for one in returns[0]], "returns are not scaled"


# -- what must hold of all


@pytest.mark.parametrize("gamma", [0.9, 1.0])
@pytest.mark.parametrize("lam", [0.0, 0.7, 1.0])
def test_it_is_the_sum_of_the_paper(gamma, lam):
    rng = np.random.default_rng(1)
    for lengths in ([1], [4], [2, 1, 3, 1]):
        values = rng.normal(size=sum(lengths))
        advantages, returns = gae(values, lengths, 0.7, gamma=gamma, lam=lam, over="tokens")
        np.testing.assert_allclose(advantages, written_out(values, 0.7, gamma, lam), atol=1e-12)
        np.testing.assert_allclose(returns, advantages + values, atol=1e-12)
        firsts = np.cumsum([0, *lengths[:-1]])
        advantages, returns = gae(values, lengths, 0.7, gamma=gamma, lam=lam, over="turns")
        expected = written_out(values[firsts], 0.7, gamma, lam)
        np.testing.assert_allclose(advantages, np.repeat(expected, lengths), atol=1e-12)
        np.testing.assert_allclose(returns[firsts], expected + values[firsts], atol=1e-12)
        assert np.isnan(np.delete(returns, firsts)).all()


def test_a_critic_that_diverged_is_refused():
    with pytest.raises(ValueError, match="it diverged"):
        gae(VALUES * np.inf, [3], 1.0, gamma=1.0, lam=0.5, over="tokens")


# -- the expected gradient, enumerated


def true_values():
    """By reward, which tells the way: the value before each of its turns."""
    paths = list(zip(REWARDS, ways(), strict=True))
    start = sum(way.probability * way.reward for _, way in paths)
    behind = {}
    for first in (1, 2):
        of_first = [way for path, way in paths if path[0] == first]
        behind[first] = sum(way.probability * way.reward for way in of_first) / sum(way.probability for way in of_first)
    return {way.reward: [start, *([behind[path[0]]] if len(path) > 1 else [])] for path, way in paths}


def expected(over, lam, values):
    """With turns of three tokens and one; the bandit asks for a number for each turn."""

    def advantages(rewards_G, num_turns_G):
        found = []
        for reward, num_turns in zip(rewards_G, num_turns_G, strict=True):
            lengths = [3, 1][:num_turns] if over == "turns" else [1] * num_turns
            values_T = np.repeat(values[reward], lengths)
            given, _ = gae(values_T, lengths, reward, gamma=1.0, lam=lam, over=over)
            found.append(given[np.cumsum([0, *lengths[:-1]])])
        return found

    return expected_gradient(2, advantages)


@pytest.mark.parametrize("over", ["tokens", "turns"])
@pytest.mark.parametrize("lam", [0.0, 0.5, 0.95, 1.0])
def test_with_the_right_values_the_true_gradient_is_expected(lam, over):
    np.testing.assert_allclose(expected(over, lam, true_values()), true_gradient(), atol=1e-9)


@pytest.mark.parametrize("over", ["tokens", "turns"])
def test_wrong_values_do_no_harm_only_where_all_is_waited_for(over):
    wrong = {reward: [0.1, 0.9][: len(values)] for reward, values in true_values().items()}
    np.testing.assert_allclose(expected(over, 1.0, wrong), true_gradient(), atol=1e-9)
    assert np.abs(expected(over, 0.5, wrong) - true_gradient()).max() > 0.01
