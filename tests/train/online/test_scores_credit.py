"""Advantages by scores that are compared one by one: worked out on paper, and what they follow."""

from math import sqrt

import numpy as np
import pytest

from posttrain.train.advantages.credit import StepContext
from posttrain.train.advantages.groups import Group
from posttrain.train.advantages.scores import ScoresCredit
from tests.train.online.bandit import expected_of_ways, sum_over_ways, ways

TINY = 1e-13
WEIGHTS = {"a": 2.0, "b": 1.0}


def group(task_id="t", **scores):
    scores_G = {name: np.array(values, float) for name, values in scores.items()}
    size = len(next(iter(scores_G.values()), []))
    return Group(task_id, np.zeros(size), np.zeros(size, bool), scores_G=scores_G)


def advantages(*groups, floor=TINY, weights=WEIGHTS):
    rule = ScoresCredit.model_validate({"type": "scores", "floor": floor})
    context = StepContext(score_weights=weights)
    return [one.tolist() for one in rule.episode_advantages(groups, context)]


def test_each_score_is_compared_by_itself_and_only_then_weighed():
    [found] = advantages(group(a=[1, 0], b=[0.5, 1]))
    assert found == pytest.approx([1 / sqrt(2), -1 / sqrt(2)])
    # a spreads by 1 and b by 0.01; their deviations are both 1 then: 2 + 1, -2 - 1, 2 - 1, -2 + 1
    [even] = advantages(group(a=[1, 0, 1, 0], b=[0.51, 0.5, 0.5, 0.51]))
    assert even == pytest.approx(np.array([3, -3, 1, -1]) / sqrt(20 / 3))


def test_the_sums_are_measured_by_their_deviation_over_the_step():
    wide, narrow = group(a=[1, 0], b=[1, 0]), group(a=[1, 0], b=[0, 1])
    found = advantages(wide, narrow)
    sums = np.array([3, -3, 1, -1]) / sqrt(2)
    np.testing.assert_allclose(np.ravel(found), sums / sums.std(ddof=1))
    floored = advantages(wide, narrow, floor=0.5)
    sums = np.array([1.5, -1.5, 0.5, -0.5]) / (sqrt(0.5) + 0.5)
    np.testing.assert_allclose(np.ravel(floored), sums / (sums.std(ddof=1) + 0.5))


@pytest.mark.parametrize("level", [0.2, 1 / 3, 0.6, 0.9625])
def test_a_constant_score_adds_exactly_nothing(level):
    alone = advantages(group(a=[1, 0, 0]), weights={"a": 2.0})
    assert advantages(group(a=[1, 0, 0], b=[level] * 3)) == alone
    assert advantages(group(a=[1, 0, 0], b=[level] * 3), group(a=[level] * 3, b=[0.1] * 3))[1] == [0.0] * 3
    assert advantages(group(a=[0.3, 0.1 + 0.2, 0.3], b=[0.0] * 3)) == [[0.0] * 3], "but for the last bit"


def test_a_mistake_has_a_weight_below_zero():
    [found] = advantages(group(a=[1, 0]), weights={"a": -0.5})
    assert found == pytest.approx([-1 / sqrt(2), 1 / sqrt(2)])


def test_the_same_for_all_scores_raised_or_stretched_and_in_any_order():
    a, b = np.random.default_rng(1).random((2, 6))
    [plain] = advantages(group(a=a, b=b))
    for other in (group(a=a + 7, b=b), group(a=a, b=b * 30)):
        np.testing.assert_allclose(advantages(other), [plain], atol=1e-9)
    np.testing.assert_allclose(advantages(group(a=a[::-1], b=b[::-1])), [plain[::-1]], atol=1e-12)


def test_groups_may_be_uneven_and_one_of_one_is_in_no_batch():
    found = advantages(group(a=[1, 0]), group(a=[1]), Group("u", np.zeros(0), np.zeros(0, bool)), group(a=[1, 0, 0]))
    assert found[1:3] == [[0.0], []]
    assert [found[0], found[3]] == advantages(group(a=[1, 0]), group(a=[1, 0, 0]))


def test_a_task_without_any_of_the_scores_is_refused():
    with pytest.raises(ValueError, match="task t has none of the scores a, b"):
        advantages(group(c=[1, 0]))


def two_scores(way):
    """Its reward, and a score for being short: with the weights above the first decides."""
    return {"a": way.reward, "b": float(len(way.scores) == 1)}


def of_ways(members, weights):
    return group(**{name: [two_scores(way)[name] for way in members] for name in weights})


def expected(size, weights):
    def of_turns(members):
        [found] = advantages(of_ways(members, weights), weights=weights)
        return [[one] * len(way.scores) for one, way in zip(found, members, strict=True)]

    return expected_of_ways(size, of_turns)


@pytest.mark.parametrize("weights", [WEIGHTS, {"a": 1.0, "b": 2.0}], ids=["reward decides", "shortness decides"])
def test_in_pairs_it_follows_how_often_one_is_preferred_to_another(weights):
    def votes(one, other):
        return sum(
            weight * np.sign(two_scores(one)[name] - two_scores(other)[name]) for name, weight in weights.items()
        )

    def preferred(way, _):
        return sum(other.probability * np.sign(votes(way, other)) for other in ways()) / sqrt(2)

    np.testing.assert_allclose(expected(2, weights), sum_over_ways(preferred), atol=1e-9)
