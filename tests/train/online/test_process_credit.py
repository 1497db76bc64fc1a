"""Advantages by the values of a process model: worked out on paper, and the expected gradient
enumerated."""

import math

import numpy as np
import pytest
from tiny import tiny_reward_model
from tiny_runs import run_here

from posttrain.runtime.exits import ConfigurationError
from posttrain.train.advantages.credit import EpisodeCredit, StepContext
from posttrain.train.advantages.groups import Group, Turn
from posttrain.train.advantages.process_model import ProcessModelCredit
from tests.train.online.bandit import expected_of_ways, group_of, true_gradient

NONE, STD = {"type": "none"}, {"type": "batch_std", "floor": 1e-9}
WRONG = {"after ()": 0.9, "after (1,)": -2.0, "after (2,)": 7.5}  # of the bandit's states; no values of anything
OUTCOME = {"type": "episode", "baseline": {"type": "leave_one_out"}, "scale": NONE, "drop": "none"}


def credit(**knobs):
    return ProcessModelCredit.model_validate({"type": "process_model", "weight": 1.0, "scale": NONE} | knobs)


def credited(rule, rewards, *values):
    rewards_G, values_G = np.array(rewards, float), [np.array(own, float) for own in values]
    group = Group("t", rewards_G, rewards_G == 1, [[Turn(1, "", None)] * len(own) for own in values_G])
    [found] = rule.turn_advantages([group], StepContext(values=[values_G]))
    return [own.tolist() for own in found]


def test_a_turn_has_the_outcome_and_the_step_rewards_from_it_on_less_what_was_expected():
    three, one = [0.5, 0.25, 0.75], [0.5]
    assert credited(credit(), [1, 0.5], three, one) == [[0.5, 0.75, 0.25], [-0.5]]
    assert credited(credit(weight=0.5), [1, 0.5], three, one) == [[0.5, 0.625, 0.375], [-0.5]]
    # the same by adding up step rewards: -1/4, 1/2 and 0 - 3/4, of which -1/2 were expected
    assert [0.5 + sum([-0.25, 0.5, -0.75][turn:]) + 0.5 for turn in range(3)] == [0.5, 0.75, 0.25]


def test_turns_behind_the_one_that_lost_everything_are_not_blamed():
    [failed, _] = credited(credit(), [0, 1], [1.0, 0.0, 0.0, 0.0], [1.0])
    assert failed == [-1.0, 0.0, 0.0, 0.0]


def test_at_weight_0_all_turns_have_the_outcome_alone():
    rule = EpisodeCredit.model_validate(OUTCOME | {"equal_groups": {"type": "by_baseline"}})
    for rewards in ([1, 0, 0.3], [0.1, 0.1, 0.1]):
        values = [0.5, 0.1], [0.5], [0.5, 0.9, 0.2]
        assert credited(credit(weight=0.0), rewards, *values) == credited(rule, rewards, *values)


def test_a_group_of_equal_rewards_is_told_what_its_turns_lost_and_won():
    assert credited(credit(), [1, 1], [0.5, 0.25], [0.5]) == [[0.0, 0.25], [0.0]]


def test_over_the_steps_deviation_all_turns_count_alike_and_a_lone_episode_for_nothing():
    deviation = math.sqrt((1 + 0.25 + 1) / 2)
    [two, one] = credited(credit(scale=STD), [1, 0], [0.5, 1.0], [0.5])
    np.testing.assert_allclose([*two, *one], np.array([1, 0.5, -1]) / deviation)
    assert credited(credit(scale=STD), [1], [0.5, 0.1]) == [[0.0, 0.0]]
    assert credited(credit(), [1, 0], [], [0.5]) == [[], [-1.0]]


@pytest.mark.parametrize("weight", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("size", [2, 3])
def test_the_expected_gradient_is_the_true_one_whatever_the_model_says(size, weight):
    def advantages(members):
        values = [np.array([WRONG[turn.state] for turn in way.turns]) for way in members]
        context = StepContext(values=[values])
        [found] = credit(weight=weight).turn_advantages([group_of(members)], context)
        return found

    np.testing.assert_allclose(expected_of_ways(size, advantages), true_gradient(), atol=1e-9)


def test_a_training_without_the_model_is_refused_with_a_remedy(tmp_path):
    rule = {"type": "process_model", "weight": 1.0, "scale": NONE}
    with pytest.raises(ConfigurationError, match="train_process_model"):
        run_here("online", tmp_path, process_model=None, credit=rule)


def test_the_models_values_reach_the_weights(tmp_path):
    rule = {"type": "process_model", "weight": 1.0, "scale": NONE}
    made = {
        seed: run_here("online", tmp_path / str(seed), max_steps=1, process_model=tiny_reward_model(seed), credit=rule)
        for seed in (0, 1)
    }
    weights = [model.state_dict()["lm_head.weight"] for model, _ in made.values()]
    assert not (weights[0] == weights[1]).all()
