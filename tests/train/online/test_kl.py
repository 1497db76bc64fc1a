"""Divergence from the model that training began from: its expected value and gradient,
enumerated, and the controller of its weight on paper."""

import json
import math

import pytest
import torch
from pydantic import TypeAdapter

from posttrain.train.losses import KlParams, KlWeight, kl_estimates

LOGITS, REFERENCE = [0.4, -0.3, 0.9, 0.1], [1.0, 0.2, -0.7, 0.3]


def logprobs(logits):
    return torch.tensor(logits, dtype=torch.float64, requires_grad=True)


def divergence(one, other):
    return (one.exp() * (one - other)).sum()


def weight(**knobs):
    return KlWeight(TypeAdapter(KlParams).validate_python(knobs))


def adaptive(**knobs):
    return weight(**{"type": "adaptive", "weight": 0.01, "target": 0.05, "horizon": 10} | knobs)


def test_the_term_of_a_token_is_worked_out_by_hand():
    now = torch.tensor([0.5, 0.25, 0.5, 1.0], dtype=torch.float64).log()
    reference = torch.tensor([0.25, 0.5, 0.5, 1.0], dtype=torch.float64).log()
    expected = [1 / 2 - 1 + math.log(2), 2 - 1 - math.log(2), 0.0, 0.0]
    assert kl_estimates(now, reference).tolist() == pytest.approx(expected, abs=1e-15)


def test_the_gradient_of_a_token_is_one_less_its_ratio():
    now = torch.tensor([math.log(0.5)], dtype=torch.float64, requires_grad=True)
    kl_estimates(now, torch.tensor([math.log(0.2)], dtype=torch.float64)).sum().backward()
    assert now.grad.tolist() == pytest.approx([1 - 0.2 / 0.5], abs=1e-12)


def test_on_policy_the_value_is_one_divergence_and_the_gradient_the_others():
    logits, reference = logprobs(LOGITS), logprobs(REFERENCE).detach().log_softmax(0)
    policy = logits.log_softmax(0)
    drawn = policy.detach().exp()  # every token, as often as it is drawn
    mean = (drawn * kl_estimates(policy, reference)).sum()
    assert float(mean.detach()) == pytest.approx(float(divergence(policy, reference).detach()), abs=1e-12)

    [found], [of_reference], [of_policy] = (
        torch.autograd.grad(number, logits, retain_graph=True)
        for number in (mean, divergence(reference, policy), divergence(policy, reference))
    )
    torch.testing.assert_close(found, of_reference, rtol=0, atol=1e-9)
    assert float((found - of_policy).abs().max()) > 0.01


@pytest.mark.parametrize(("kl", "after"), [(0.055, 0.0101), (0.05, 0.01), (1.0, 0.0102), (0.0, 0.0098), (-1, 0.0098)])
def test_the_weight_follows_the_divergence_by_hand(kl, after):
    found = adaptive()
    found.observe(kl)
    assert found.weight == pytest.approx(after, rel=1e-12)


def test_a_constant_stays_and_no_term_has_no_weight():
    for kind, expected in (({"type": "loss", "weight": 0.3}, 0.3), ({"type": "none"}, 0.0)):
        found = weight(**kind)
        found.observe(9.0)
        assert found.weight == expected


def test_it_goes_on_from_its_state():
    one, other = adaptive(), adaptive()
    one.observe(1.0)
    other.restore(json.loads(json.dumps(one.state())))
    one.observe(0.0)
    other.observe(0.0)
    assert one.weight == other.weight != adaptive().weight


def test_a_divergence_that_is_no_number_is_refused():
    with pytest.raises(ValueError, match="lower its lr"):
        adaptive().observe(math.nan)
