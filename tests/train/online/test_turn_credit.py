"""Advantages of single turns: worked out on paper, and their expected gradients on a problem that
is enumerated in full, against what each docstring says that they are."""

import itertools
from math import comb, sqrt

import numpy as np
import pytest

from posttrain.train.advantages.credit import StepContext
from posttrain.train.advantages.groups import Group, Turn
from posttrain.train.advantages.returns import DiscountedCredit, StatesCredit
from posttrain.train.advantages.turn_scores import TurnScoresCredit, first_call
from tests.train.online.bandit import expected_of_ways, group_of, sum_over_ways, true_gradient, ways

MEAN, OTHERS = {"type": "group_mean"}, {"type": "leave_one_out"}
BEST = {"type": "virtual_best", "best": 1.25}
NONE, STD = {"type": "none"}, {"type": "group_std", "floor": 1e-9}
PLAIN = {"baseline": MEAN, "scale": NONE, "drop": "none"}
NOTHING_KNOWN = StepContext()

RULES = {
    "discounted": (DiscountedCredit, {"gamma": 0.5}),
    "turn_scores": (TurnScoresCredit, {"turns": "first", "weight": 1.0}),
    "every_turn": (TurnScoresCredit, {"type": "turn_scores", "turns": "every", "weight": 1.0}),
    "states": (StatesCredit, {"gamma": 0.5, "weight": 1.0, "state_baseline": MEAN}),
}


def turns(*states_and_scores):
    """`("a", None), ("b", 0.5)`, a token each; a state alone has no score."""
    both = [one if isinstance(one, tuple) else (one, None) for one in states_and_scores]
    return [Turn(1, state, score) for state, score in both]


def group(rewards, turns_G, *, task_id="t", successes=None):
    rewards_G = np.array(rewards, float)
    return Group(task_id, rewards_G, rewards_G == 1 if successes is None else np.array(successes), turns_G)


def credited(name, *groups, **knobs):
    kind, own = RULES[name]
    found = kind.model_validate({"type": name} | PLAIN | own | knobs).turn_advantages(groups, NOTHING_KNOWN)
    return [[of_turns.tolist() for of_turns in of_group] for of_group in found]


# -- by hand


def test_a_turn_is_discounted_for_each_that_came_after_it():
    [found] = credited("discounted", group([1, 0], [turns("a", "b", "c"), turns("a")]))
    assert found == [[0.125, 0.25, 0.5], [-0.5]]


def test_the_turns_up_to_the_first_result_are_credited_with_their_own_score_too():
    early, late = turns(("a", 0.5), ("b", 1.0)), turns("a", ("c", 0.0), "d")
    [found] = credited("turn_scores", group([1, 0], [early, late]))
    # outcome +-1/2, first scores 1/2 and 0: +-1/4; what comes after the call has the outcome alone
    assert found == [[0.75, 0.5], [-0.75, -0.75, -0.5]]
    [half] = credited("turn_scores", group([1, 0], [early, late]), weight=0.5)
    assert half == [[0.625, 0.5], [-0.625, -0.625, -0.5]]


def test_who_called_nothing_is_compared_by_both_sums_at_once():
    silent = turns("a", "b")
    [found] = credited("turn_scores", group([1, 0], [turns(("a", 0.5)), silent]))
    assert found == [[0.75], [-0.75, -0.75]]
    # over a deviation two comparisons are not one of both; the sums are 2, 0.5 and 1
    three = group([1.5, 0.0, 1.0], [turns(("a", 0.5)), turns(("a", 0.5)), silent])
    [[_, _, alone]] = credited("turn_scores", three, scale=STD)
    assert alone == pytest.approx([(1.0 - 3.5 / 3) / np.std([2.0, 0.5, 1.0], ddof=1)] * 2)


def test_every_turn_with_a_score_is_compared_with_all_the_groups():
    two = group([1, 0], [turns(("a", 1.0), ("b", 0.25), "c"), turns("a", ("b", 0.25))])
    [found] = credited("turn_scores", two, turns="every")  # the mean score is 1/2
    assert found == [[1.0, 0.25, 0.5], [-0.5, -0.75]]
    [doubled] = credited("turn_scores", two, turns="every", weight=2.0, scale=STD)
    deviation, outcome = np.std([1, 0.25, 0.25], ddof=1) + STD["floor"], 0.5 / (np.std([1, 0], ddof=1) + STD["floor"])
    np.testing.assert_allclose(doubled[0], [outcome + 1 / deviation, outcome - 0.5 / deviation, outcome])
    best = {"type": "virtual_best", "best": 1.0}
    [bad] = credited("turn_scores", group([1, 1], [turns(("a", 0.0)), turns(("a", 0.0))]), turns="every", baseline=best)
    np.testing.assert_allclose(bad, [[-1 / 3]] * 2)  # 0 less the mean of 0, 0 and 1
    silent = group([1, 0], [turns("a"), turns(("a", 0.5))])
    assert credited("turn_scores", silent, turns="every") == [[[0.5], [-0.5]]], "one score is compared with none"


def test_a_turns_score_has_a_virtual_best_of_one():
    two = group([1, 1], [turns(("a", 1.0)), turns(("a", 1.0))])
    best = {"type": "virtual_best", "best": 1.0}
    assert credited("turn_scores", two, baseline=best) == [[[0.0], [0.0]]], "all as good as can be"
    # first scores 0, 0 and one of 1: -1/3 beside an outcome of 1 - 1
    worse = group([1, 1], [turns(("a", 0.0)), turns("a")])
    assert credited("turn_scores", worse, baseline=best) == [[pytest.approx([-1 / 3])] * 2]


def test_turns_from_one_state_are_compared_by_what_came_of_them():
    three = group([1, 0, 0], [turns("a", "b"), turns("a", "b"), turns("a", "c")])
    [found] = credited("states", three)
    # outcome 2/3, -1/3, -1/3; returns 1/2, 0, 0 from a; 1, 0 from b; alone at c
    np.testing.assert_allclose(found, [[2 / 3 + 1 / 3, 2 / 3 + 1 / 2], [-1 / 2, -1 / 3 - 1 / 2], [-1 / 2, -1 / 3]])
    [others] = credited("states", three, state_baseline=OTHERS, weight=2.0)
    np.testing.assert_allclose(others, [[2 / 3 + 1, 2 / 3 + 2], [-1 / 3 - 1 / 2, -1 / 3 - 2], [-1 / 3 - 1 / 2, -1 / 3]])


def test_a_state_that_was_seen_once_is_compared_with_a_virtual_best_or_with_nothing():
    two = group([1, 1], [turns("a"), turns("b")])
    assert credited("states", two) == [[[0.0], [0.0]]]
    assert credited("states", two, state_baseline=OTHERS) == [[[0.0], [0.0]]]
    assert credited("states", two, state_baseline=BEST) == [[[-0.125], [-0.125]]]  # half of 1 - 1.25
    scaled = credited("states", two, state_baseline=BEST, scale=STD)
    assert scaled == [[pytest.approx([-1 / sqrt(2)], rel=1e-6)] * 2]


# -- what must hold of all


def three_of_each():
    played = [turns("a", ("b", 0.5), "c"), turns(("a", 0.25), "b"), turns("a")]
    return [group(rewards, played) for rewards in ([1.0, 0.25, 0.5], [0.0, 0.75, 1.0])]


@pytest.mark.parametrize("scale", [NONE, STD], ids=["none", "group_std"])
@pytest.mark.parametrize("name", RULES)
def test_the_order_of_members_changes_nothing(name, scale):
    one, other = three_of_each()
    plain = credited(name, one, other, scale=scale)
    turned = credited(name, *(group(of.rewards_G[::-1], of.turns_G[::-1]) for of in (other, one)), scale=scale)
    for before, after in zip(plain, turned[::-1], strict=True):
        for of_member, of_same in zip(before, after[::-1], strict=True):
            np.testing.assert_allclose(of_member, of_same, atol=1e-12)


def test_rewards_raised_alike_change_the_credit_of_states_by_what_a_long_way_discounts():
    """A return of 7 is 3.5 a turn earlier: raised rewards make long ways worse, from the same
    state."""
    two = [turns("a", "b"), turns("a")]
    assert credited("states", group([0.0, 0.0], two)) == [[[0.0, 0.0], [0.0]]]
    assert credited("states", group([1.0, 1.0], two)) == [[[-0.25, 0.0], [0.25]]]


@pytest.mark.parametrize("baseline", [MEAN, OTHERS], ids=["group_mean", "leave_one_out"])
@pytest.mark.parametrize("name", RULES)
def test_rewards_that_differ_by_rounding_teach_nothing(name, baseline):
    three = group([-0.3, -0.2 - 0.1, -0.3], [turns(("a", 0.7), "b")] * 3)
    knobs = {"baseline": baseline, "scale": STD} | ({"state_baseline": baseline} if name == "states" else {})
    assert credited(name, three, **knobs) == [[[0.0, 0.0]] * 3]


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("baseline", [MEAN, BEST], ids=["group_mean", "virtual_best"])
def test_a_group_of_one_and_of_none_teach_nothing(name, baseline):
    knobs = {"baseline": baseline} | ({"state_baseline": baseline} if name == "states" else {})
    assert credited(name, group([0.5], [turns(("a", 1.0), "b")]), group([], []), **knobs) == [[[0.0, 0.0]], []]


@pytest.mark.parametrize("name", RULES)
def test_a_dropped_group_has_nothing_of_either_kind(name):
    played = [turns(("a", 1.0)), turns(("a", 0.0), "b")]
    dropped = group([0.9, 0.8], played, successes=[True, True])
    assert credited(name, dropped, drop="all_good") == [[[0.0], [0.0, 0.0]]]
    assert credited(name, group([0.9, 0.9], played), drop="equal") == [[[0.0], [0.0, 0.0]]]
    assert any(credited(name, dropped)[0][0]), "and it would have had"


def test_a_return_above_the_virtual_best_is_refused():
    with pytest.raises(ValueError, match=r"2, more than the virtual best of 1\.25"):
        credited("states", group([2, 0], [turns("a"), turns("a")]), state_baseline=BEST)


def test_an_episode_of_no_turn_is_a_member_with_no_number():
    for name in RULES:
        [found] = credited(name, group([1, 0], [turns("a"), []]))
        assert found[0][0] > 0
        assert found[1] == []


def test_what_has_no_meaning_for_turns_is_no_knob_of_theirs():
    with pytest.raises(ValueError, match="nothing"):
        credited("turn_scores", baseline={"type": "nothing"})
    with pytest.raises(ValueError, match="batch_std"):
        credited("states", scale={"type": "batch_std", "floor": 1e-4})


# -- the expected gradient, enumerated

SIZE = 3
SHARES = [(MEAN, 2 / 3), (OTHERS, 1.0), (BEST, 3 / 4), ({"type": "batch_mean"}, 2 / 3)]
NAMES = ["group_mean", "leave_one_out", "virtual_best", "batch_mean"]


def expected(name, **knobs):
    return expected_of_ways(SIZE, lambda members: credited(name, group_of(members), **knobs)[0])


def mean_reward():
    return sum(way.probability * way.reward for way in ways())


@pytest.mark.parametrize(("baseline", "share"), SHARES, ids=NAMES)
def test_discounting_follows_the_gradient_of_another_objective_that_is_known(baseline, share):
    gamma, level = 0.5, mean_reward()
    if baseline is BEST:
        level = ((SIZE - 1) * level + BEST["best"]) / SIZE
    biased = sum_over_ways(lambda way, turn: gamma ** (len(way.scores) - 1 - turn) * (way.reward - level))
    np.testing.assert_allclose(expected("discounted", baseline=baseline), share * biased, atol=1e-9)
    assert not are_along(biased, true_gradient())


@pytest.mark.parametrize(("baseline", "share"), SHARES, ids=NAMES)
def test_turn_scores_follow_the_gradient_of_reward_and_first_score_without_a_bias(baseline, share):
    weight = 0.7
    target = sum_over_ways(lambda way, _: way.reward + weight * first_score(way))
    found = expected("turn_scores", baseline=baseline, weight=weight)
    np.testing.assert_allclose(found, share * target, atol=1e-9)
    assert not are_along(target, true_gradient())


def test_every_turn_adds_the_gradient_of_its_own_score_less_what_the_groups_are_expected_to_be():
    """The result is the gradient of no objective, also not of the sum of scores."""
    weight = 0.7

    def scores(*members):
        return [turn.score for way in members for turn in way.turns if turn.score is not None]

    def added(way, turn):
        if (score := way.turns[turn].score) is None:
            return 0.0
        total = 0.0
        for others in itertools.product(ways(), repeat=SIZE - 1):
            pool = scores(way, *others)
            chance = np.prod([other.probability for other in others])
            total += chance * (score - np.mean(pool) if len(pool) > 1 else 0.0)
        return total

    found = expected("every_turn", baseline=MEAN, weight=weight)
    of_turns = weight * sum_over_ways(added)
    np.testing.assert_allclose(found, SHARES[0][1] * true_gradient() + of_turns, atol=1e-9)
    assert not are_along(of_turns, sum_over_ways(lambda way, _: sum(scores(way))))


@pytest.mark.parametrize("state_baseline", [MEAN, OTHERS, BEST], ids=NAMES[:3])
def test_states_add_each_turns_own_gradient_by_how_many_others_were_there(state_baseline):
    gamma, weight = 0.5, 0.7
    of_others = {MEAN["type"]: lambda n: n / (n + 1), OTHERS["type"]: lambda n: float(n > 0)}
    of_one = of_others.get(state_baseline["type"], lambda n: (n + 1) / (n + 2))

    def share(state):
        """Expected of the number of others, each of whom is there by itself."""
        chance = min(sum(way.probability for way in ways() if any(turn.state == state for turn in way.turns)), 1.0)
        others = SIZE - 1
        return sum(comb(others, n) * chance**n * (1 - chance) ** (others - n) * of_one(n) for n in range(others + 1))

    added = sum_over_ways(
        lambda way, turn: share(way.turns[turn].state) * gamma ** (len(way.scores) - 1 - turn) * way.reward
    )
    found = expected("states", baseline=OTHERS, state_baseline=state_baseline, gamma=gamma, weight=weight)
    np.testing.assert_allclose(found, true_gradient() + weight * added, atol=1e-9)


def first_score(way):
    place = first_call(way.turns)
    return 0.0 if place is None else way.turns[place].score


def are_along(one, other):
    cosine = one @ other / np.linalg.norm(one) / np.linalg.norm(other)
    return abs(cosine) > 1 - 1e-6
