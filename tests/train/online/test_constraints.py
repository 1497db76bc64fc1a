"""Constrained learning: multipliers on paper, the charge on a reward, and a policy of a bandit."""

from dataclasses import replace

import numpy as np
import pytest
from pydantic import ValidationError

from posttrain.runtime.plain_yaml import load_yaml
from posttrain.train.online.constraints import ConstraintParams, Constraints
from posttrain.train.online.params import OnlineParams
from posttrain.types import Message, ScoredEpisode, StopReason, Trajectory

EXAMPLE = load_yaml(ConstraintParams.example, "example")


def constraint(**changes):
    return ConstraintParams(**EXAMPLE | {"score": "harm"} | changes)


def episodes(*harms, **changes):
    words = (Message("user", "now"), Message("assistant", "done"))
    one = Trajectory("t", words, StopReason.DONE, token_ids=(1,) * 5, mask=(0, 1, 1, 1, 1), reward=1.0)
    return [ScoredEpisode(replace(one, scores={"harm": float(harm)}, **changes), bonus=0.25) for harm in harms]


def test_the_multiplier_is_worked_out_by_hand():
    held = Constraints([constraint(max_mean=0.1, lr=0.5, decay=0.5, max_weight=1.0)])
    # the mean is that of the first step, then (0.5 · 0.25 + 0.5 · 1) / 0.75
    for step, (harms, weight) in enumerate([([1, 0], 0.2), ([1, 1], 0.2 + 0.5 * (0.625 / 0.75 - 0.1)), ([0, 0], None)]):
        found = held.observe(episodes(*harms))
        assert found["cost_harm"] == np.mean(harms)
        if weight is not None:
            assert held.weights == [pytest.approx(weight, abs=1e-12)], step
    for _ in range(20):
        held.observe(episodes(1))
    assert held.weights == [1.0], "no more than max_weight"
    for _ in range(40):
        held.observe(episodes(0))
    assert held.weights == [0.0], "and no less than 0"


def test_the_charge_is_the_weighted_cost_beside_the_bonus_and_a_lost_episode_says_nothing():
    held = Constraints([constraint(max_mean=0.5, lr=1.0, decay=0.0), constraint(score="tokens", max_mean=2.0, lr=1.0)])
    lost = episodes(1, stop_reason=StopReason.ENGINE_LOST)
    found = held.observe([*episodes(1), *lost])
    assert found == {"cost_harm": 1.0, "cost_weight_harm": 0.0, "cost_tokens": 4.0, "cost_weight_tokens": 0.0}
    assert held.weights == [0.5, 1.0]  # four tokens are twice what is wanted
    harmless, harmful = held.charged(episodes(0, 1))
    assert harmless.bonus == 0.25 - 1.0 * 2
    assert harmful.bonus == pytest.approx(harmless.bonus - 0.5)
    assert harmful.rule_reward == 1.0, "metrics are of the reward by rules"
    assert held.observe(lost) == {}


def test_it_goes_on_from_its_state():
    held, again = (Constraints([constraint()]) for _ in range(2))
    held.observe(episodes(1, 0))
    again.restore(held.state())
    assert held.observe(episodes(1)) == again.observe(episodes(1))
    assert held.weights == again.weights


@pytest.mark.parametrize("limit", [0.1, 0.3, None])
def test_a_policy_of_two_actions_ends_at_the_limit(limit):
    """The harmful action earns 1 and the other 0.9: without a limit it is what is done."""
    draw, logit, rates = np.random.default_rng(1), 1.0, []
    held = Constraints([constraint(max_mean=limit, lr=0.005, decay=0.8)] if limit else [])
    for _ in range(4000):
        rate = 1 / (1 + np.exp(-logit))
        played = episodes(*(draw.random(16) < rate))
        rewards = np.array([0.9 + 0.1 * one.trajectory.scores["harm"] + one.bonus for one in held.charged(played)])
        harms = np.array([one.trajectory.scores["harm"] for one in played])
        logit += float(np.mean((rewards - rewards.mean()) * (harms - rate)))
        held.observe(played)
        rates.append(rate)
    assert np.mean(rates[-2000:]) == pytest.approx(limit or 1.0, abs=0.05)


@pytest.mark.parametrize("credit", ["{type: scores, scale: {type: none}}", "{type: imitation}"])
def test_a_credit_that_reads_no_reward_is_refused(credit):
    knobs = load_yaml(OnlineParams.example, "example") | {"type": "online", "constraints": [EXAMPLE]}
    assert OnlineParams(**knobs).constraints[0].limit == 0.02
    join = {"type": "expert", "count": 1, "gamma": None} if "imitation" in credit else {"type": "none"}
    with pytest.raises(ValidationError, match=r"write_before_consent and credit is|credit"):
        OnlineParams(**knobs | {"credit": load_yaml(credit, "credit"), "join": join})
