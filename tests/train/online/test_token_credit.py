"""Token advantages of each method in params.yaml, and those of groups of equal rewards."""

import numpy as np
import pytest
import yaml
from pydantic import TypeAdapter

from posttrain.train.advantages.credit import ByCoin, ByEntropy, EpisodeCredit, ImitationCredit, StepContext
from posttrain.train.advantages.groups import Group, Turn
from posttrain.train.advantages.returns import DiscountedCredit, StatesCredit
from posttrain.train.advantages.scores import ScoresCredit
from posttrain.train.advantages.turn_scores import TurnScoresCredit
from posttrain.train.online.params import CreditParams
from tests.train.online.bandit import expected_of_ways, group_of, sum_over_ways, ways

KINDS = [EpisodeCredit, ScoresCredit, DiscountedCredit, TurnScoresCredit, StatesCredit, ImitationCredit]
ENTROPY = {"type": "by_entropy", "alpha": 0.1}
COIN = {"type": "by_coin", "size": 0.3}
TWO_TURNS = [Turn(2, "start", 1.0), Turn(1, "start/ok", None)]
ONE_TURN = [Turn(3, "start", None)]


def credit(kind, **knobs):
    values = {"type": kind.model_fields["type"].annotation.__args__[0], **yaml.safe_load(kind.example)}
    return TypeAdapter(CreditParams).validate_python(values | knobs)


def episode(equal_groups, **knobs):
    return credit(EpisodeCredit, scale={"type": "none"}, equal_groups=equal_groups, **knobs)


def group(*rewards, turns_G=None, successes=None, is_replayed_G=()):
    rewards_G = np.array(rewards, float)
    successes_G = rewards_G == 1 if successes is None else np.array(successes)
    turns_G = turns_G or [TWO_TURNS, *[ONE_TURN] * (len(rewards) - 1)][: len(rewards)]
    return Group("t", rewards_G, successes_G, turns_G, {"completion": rewards_G}, is_replayed_G)


def credited(rule, *groups, entropies=None, seed=0, step=0):
    context = StepContext({"completion": 1.0}, entropies, seed=seed, step=step)
    found = rule.token_advantages(groups, context)
    return [[of_tokens.tolist() for of_tokens in of_group] for of_group in found]


# -- which rule, and over which tokens


def test_each_rule_credits_the_tokens_of_two_episodes_by_hand():
    plain = {"scale": {"type": "none"}}
    pair = group(1, 0)
    half = pytest.approx([1 / np.sqrt(2)] * 3, rel=1e-3)
    assert credited(credit(EpisodeCredit, **plain), pair) == [[[0.5] * 3, [-0.5] * 3]]
    assert credited(credit(ScoresCredit), pair)[0][0] == half
    assert credited(credit(DiscountedCredit, gamma=0.5, **plain), pair) == [[[0.25, 0.25, 0.5], [-0.5] * 3]]
    assert credited(credit(TurnScoresCredit, **plain), pair) == [[[1.0, 1.0, 0.5], [-1.0] * 3]]
    assert credited(credit(StatesCredit, gamma=0.5), pair) == [[[0.75, 0.75, 0.5], [-0.75] * 3]]
    joined = group(1, 0, is_replayed_G=[True, False])
    assert credited(credit(ImitationCredit), joined) == [[[1.0] * 3, [0.0] * 3]]
    assert credited(credit(ImitationCredit), pair) == [[[0.0] * 3] * 2], "nothing has joined"


@pytest.mark.parametrize("kind", KINDS)
def test_fewer_than_two_members_are_credited_with_nothing_in_any_step(kind):
    lone, pair = group(1, is_replayed_G=[True]), group(1, 0, is_replayed_G=[True, False])
    found = credited(credit(kind), lone, pair, group())
    assert [found[0], found[2]] == [[[0.0] * 3], []]
    assert found[1] == credited(credit(kind), pair)[0]
    assert any(found[1][0])


@pytest.mark.parametrize("equal_groups", [ENTROPY, COIN], ids=["by_entropy", "by_coin"])
def test_fewer_than_two_members_are_no_equal_group(equal_groups):
    assert credited(episode(equal_groups), group(1), group(), entropies=[[], []]) == [[[0.0] * 3], []]


# -- groups of equal rewards


def test_the_surest_token_of_a_failure_is_pushed_down_most_and_of_a_success_up_least():
    entropies_G = [np.array([0.5, 2.0]), np.array([1.0])]
    by_entropy, turns_G = ByEntropy.model_validate(ENTROPY), [[Turn(2, "a", None)], [Turn(1, "a", None)]]
    right = Group("t", np.ones(2), np.array([True, True]), turns_G)
    wrong = Group("t", np.zeros(2), np.array([False, False]), turns_G)
    some = Group("t", np.zeros(2), np.array([True, False]), turns_G)
    assert [one.tolist() for one in by_entropy.advantages(right, entropies_G)] == [[0.05, 0.2], [0.1]]
    np.testing.assert_allclose(by_entropy.advantages(wrong, entropies_G)[0], [-0.15, 0.0])
    assert by_entropy.advantages(wrong, entropies_G)[1].tolist() == [0.0]
    assert [one.tolist() for one in by_entropy.advantages(some, entropies_G)] == [[0.0, 0.0], [0.0]]
    silent = Group("t", np.zeros(1), np.array([False]), [[]])
    assert by_entropy.advantages(silent, [np.zeros(0)])[0].tolist() == []


def test_groups_that_differ_are_credited_as_ever():
    entropies = [[np.array([0.5, 1.0, 2.0])] * 2] * 2
    unequal, equal = group(1, 0), group(1, 1)
    for equal_groups in (ENTROPY, COIN):
        found = credited(episode(equal_groups), unequal, equal, entropies=entropies)
        assert found[0] == [[0.5] * 3, [-0.5] * 3]
        assert all(map(any, found[1]))
    by_entropies = credited(episode(ENTROPY), unequal, equal, entropies=entropies)
    np.testing.assert_allclose(by_entropies[1], [[0.05, 0.1, 0.2]] * 2)


def test_a_dropped_group_is_not_credited_by_entropy_nor_by_coin():
    entropies = [[np.ones(3)] * 2]
    for equal_groups in (ENTROPY, COIN):
        assert credited(episode(equal_groups, drop="all_good"), group(1, 1), entropies=entropies) == [[[0.0] * 3] * 2]


def test_a_coin_falls_for_a_group_at_a_time_and_the_same_way_again():
    rule = episode(COIN)
    equal = [group(1, 1) for _ in range(400)]
    found = np.array(credited(rule, *equal, seed=3, step=7))  # groups, members, tokens
    assert set(np.abs(found).ravel()) == {0.3}
    assert (found == found[:, :1, :1]).all()
    assert abs(found[:, 0, 0].mean()) < 3 * 0.3 / 20
    assert (found == np.array(credited(rule, *equal, seed=3, step=7))).all()
    for other in ({"seed": 4, "step": 7}, {"seed": 3, "step": 8}):
        assert (found != np.array(credited(rule, *equal, **other))).any()
    assert ByCoin.model_validate(COIN).advantage(seed=3, step=7, index=5) == found[5, 0, 0]


ENTROPIES = {"after ()": 0.9, "after (1,)": 0.4, "after (2,)": 0.6}
ALPHA, SIZE = 0.1, 3


def test_by_entropy_adds_the_gradient_of_success_and_of_failure_that_its_docstring_says():
    def is_right(way):
        return way.reward > 0.5

    def entropies_of(way):
        return np.array([ENTROPIES[turn.state] for turn in way.turns])

    def advantages(members):
        rewards_G = np.array([float(is_right(way)) for way in members])
        alike = Group("t", rewards_G, rewards_G == 1, group_of(members).turns_G)
        rule = episode(ENTROPY, baseline={"type": "leave_one_out"})
        return credited(rule, alike, entropies=[[entropies_of(way) for way in members]])[0]

    chance = sum(way.probability for way in ways() if is_right(way))
    unbiased = sum_over_ways(lambda way, _: float(is_right(way)))

    def added(way, turn):
        entropy, most = entropies_of(way)[turn], entropies_of(way).max()
        if is_right(way):
            return ALPHA * chance ** (SIZE - 1) * entropy
        return ALPHA * (1 - chance) ** (SIZE - 1) * (entropy - most)

    np.testing.assert_allclose(expected_of_ways(SIZE, advantages), unbiased + sum_over_ways(added), atol=1e-9)
    assert np.abs(sum_over_ways(added)).max() > 1e-3
