"""The loss of a token: values and gradients worked out by hand, in float64, and TRL's of the same
episodes."""

import math

import pytest
import torch
from pydantic import TypeAdapter

from posttrain.train.losses import (
    Objective,
    clip_side,
    importance_weights,
    token_losses,
)
from posttrain.train.online.updates import token_weights

CLIP = {"type": "clip", "low": 0.16, "high": 0.24}
OBJECTIVES = {
    "policy_gradient": {"type": "policy_gradient"},
    "clip": CLIP,
    "cispo": {"type": "cispo", "cap": 1.3},
    "gspo": {"type": "gspo", "low": 0.1, "high": 0.1},
    "sapo": {"type": "sapo", "positive": 1.0, "negative": 1.05},
}


def objective(name, **knobs):
    return TypeAdapter(Objective).validate_python(OBJECTIVES[name] | knobs)


def of_one(name, ratio, advantage):
    """Loss and its gradient by log p of one token, in float64."""
    log_ratio = torch.tensor([[math.log(ratio)]], dtype=torch.float64, requires_grad=True)
    advantages, scored = torch.tensor([[advantage]], dtype=torch.float64), torch.tensor([[True]])
    loss = token_losses(log_ratio, advantages, objective(name), is_scored_N_T=scored).sum()
    loss.backward()
    return float(loss.detach()), float(log_ratio.grad)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.0, 2.0, -2.0, -2.0),
        (1.2, 2.0, -2.4, -2.4),
        (1.5, 2.0, -2.48, 0.0),  # held at 1.24
        (1.5, -2.0, 3.0, 3.0),  # the worse side is never held
        (0.9, -2.0, 1.8, 1.8),
        (0.5, -2.0, 1.68, 0.0),  # held at 0.84
        (0.5, 2.0, -1.0, -1.0),
    ],
)
def test_a_clip_holds_the_ratio_where_the_step_would_grow(ratio, advantage, loss, gradient):
    assert of_one("clip", ratio, advantage) == pytest.approx((loss, gradient), abs=1e-12)


@pytest.mark.parametrize(
    ("name", "ratio", "advantage", "gradient"),
    [
        ("policy_gradient", 1.5, 2.0, -3.0),
        ("cispo", 1.5, 2.0, -2.6),  # min(1.5, 1.3) times the advantage
        ("cispo", 0.5, -2.0, 1.0),
        ("gspo", 1.5, 2.0, 0.0),
        ("gspo", 1.05, 2.0, -2.1),
        # 4/t s(x)(1 - s(x)) t ratio, x = t (ratio - 1)
        ("sapo", 1.5, 2.0, -8.0 * 1.5 / (2 + math.exp(0.5) + math.exp(-0.5))),
        ("sapo", 1.5, -2.0, 8.0 * 1.5 / (2 + math.exp(0.525) + math.exp(-0.525))),
    ],
)
def test_the_gradient_of_each_is_derived_by_hand(name, ratio, advantage, gradient):
    assert of_one(name, ratio, advantage)[1] == pytest.approx(gradient, abs=1e-12)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_at_a_ratio_of_one_all_have_one_gradient(name):
    assert of_one(name, 1.0, 0.7)[1] == pytest.approx(-0.7, abs=1e-12)


@pytest.mark.parametrize("log_ratio", [20.5, 90.0, 1e4, -90.0, -1e4])
@pytest.mark.parametrize("advantage", [1.0, -1.0, 0.0])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_no_ratio_makes_a_loss_or_a_gradient_without_a_bound(name, advantage, log_ratio):
    """e^90 has no room in a float32, and nothing times it is no number."""
    ratios = torch.tensor([[log_ratio, 0.0]], requires_grad=True)
    advantages, scored = torch.tensor([[advantage, 1.0]]), torch.tensor([[True, True]])
    losses = token_losses(ratios, advantages, objective(name), is_scored_N_T=scored)
    losses.sum().backward()
    for found in (losses, ratios.grad):
        assert bool(found.isfinite().all())
    weights = importance_weights(torch.tensor([log_ratio]), torch.zeros(1), cap=2.0)
    assert weights.tolist() == pytest.approx([2.0 if log_ratio > 0 else 0.0])


def test_a_ratio_within_the_bound_is_what_it_was_bit_by_bit():
    log_ratio = torch.linspace(-19.9, 19.9, 399, requires_grad=True)[None]
    advantages, scored = torch.ones(1, 399), torch.ones(1, 399, dtype=torch.bool)
    found = token_losses(log_ratio, advantages, objective("policy_gradient"), is_scored_N_T=scored)
    expected = -log_ratio.exp() * advantages
    assert torch.equal(found, expected)
    assert torch.equal(*(torch.autograd.grad(one.sum(), log_ratio)[0] for one in (found, expected)))


def test_gspo_has_one_ratio_for_an_episode_and_shares_its_gradient():
    # ratios e^0.3 and e^0.1, the third token is not the agent's: a geometric mean of e^0.2
    log_ratio = torch.tensor([[0.3, 0.1, 9.0]], dtype=torch.float64, requires_grad=True)
    scored = torch.tensor([[True, True, False]])
    losses = token_losses(log_ratio, -torch.ones(1, 3), objective("gspo", high=0.5), is_scored_N_T=scored)
    assert losses[0].tolist() == pytest.approx([math.exp(0.2)] * 3)
    losses[scored].sum().backward()
    assert log_ratio.grad[0].tolist() == pytest.approx([math.exp(0.2), math.exp(0.2), 0.0])


def test_what_is_held_is_told_with_its_side():
    log_ratio = torch.tensor([[0.5, 0.5, -0.5, -0.5, 0.0]])
    advantages = torch.tensor([[1.0, -1.0, 1.0, -1.0, 1.0]])
    scored = torch.ones(1, 5, dtype=torch.bool)
    sides = clip_side(log_ratio, advantages, objective("clip"), is_scored_N_T=scored)
    assert sides.tolist() == [[1.0, 0.0, 0.0, -1.0, 0.0]]


def test_what_a_token_counts_is_worked_out_by_hand():
    step = {"num_tokens": 4, "num_episodes": 2, "max_tokens": 10}
    lengths = torch.tensor([1, 3])
    assert token_weights(lengths, average="tokens", **step).tolist() == [0.25, 0.25]
    assert token_weights(lengths, average="episodes", **step).tolist() == pytest.approx([1 / 2, 1 / 6])
    assert token_weights(lengths, average="max_tokens", **step).tolist() == pytest.approx([1 / 20] * 2)
