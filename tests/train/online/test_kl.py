"""Divergence from the model that training began from: its expected value and gradient,
enumerated, and the controller of its weight on paper."""

import json
import math

import pytest
import torch
from pydantic import TypeAdapter

from posttrain.train.losses import KlParams, KlWeight, kl_estimates

ADAPTIVE = {"weight": 0.01, "target": 0.05, "horizon": 10}
LOGITS, REFERENCE = [0.4, -0.3, 0.9, 0.1], [1.0, 0.2, -0.7, 0.3]


def logprobs(logits):
    return torch.tensor(logits, dtype=torch.float64, requires_grad=True)


def divergence(one, other):
    return (one.exp() * (one - other)).sum()


def weight(**knobs):
    return KlWeight(TypeAdapter(KlParams).validate_python(knobs))


def adaptive(**knobs):
    return weight(**{"type": "adaptive"} | ADAPTIVE | knobs)


def test_the_term_of_a_token_is_worked_out_by_hand():
    now = torch.tensor([0.5, 0.25, 0.5, 1.0], dtype=torch.float64).log()
    reference = torch.tensor([0.25, 0.5, 0.5, 1.0], dtype=torch.float64).log()
    expected = [1 / 2 - 1 + math.log(2), 2 - 1 - math.log(2), 0.0, 0.0]
    assert kl_estimates(now, reference, now, "k3").tolist() == pytest.approx(expected, abs=1e-15)
    # the same, twice as likely now as when it was drawn; and log(2)^2 / 2
    before = now - math.log(2)
    assert kl_estimates(now, reference, before, "unbiased").tolist() == pytest.approx([2 * one for one in expected])
    squares = [math.log(2) ** 2 / 2] * 2 + [0.0, 0.0]
    assert kl_estimates(now, reference, before, "k2").tolist() == pytest.approx(squares)


@pytest.mark.parametrize(
    ("estimator", "gradient"),
    [("k3", 1 - 0.2 / 0.5), ("k2", math.log(0.5 / 0.2)), ("unbiased", 0.5 / 0.4 * math.log(0.5 / 0.2))],
)
def test_the_gradient_of_a_token_is_worked_out_by_hand(estimator, gradient):
    now = torch.tensor([math.log(0.5)], dtype=torch.float64, requires_grad=True)
    reference, before = (torch.tensor([math.log(one)], dtype=torch.float64) for one in (0.2, 0.4))
    kl_estimates(now, reference, before, estimator).sum().backward()
    assert now.grad.tolist() == pytest.approx([gradient], abs=1e-12)


def expected_of(estimator, *, drawn_by=LOGITS):
    """Expectation of value and gradient over every token, as often as it is drawn; and the
    gradients of KL(policy || reference) and KL(reference || policy)."""
    logits, reference = logprobs(LOGITS), logprobs(REFERENCE).detach().log_softmax(0)
    policy, before = logits.log_softmax(0), logprobs(drawn_by).detach().log_softmax(0)
    mean = (before.exp() * kl_estimates(policy, reference, before, estimator)).sum()
    numbers = mean, divergence(policy, reference), divergence(reference, policy)
    gradients = [torch.autograd.grad(number, logits, retain_graph=True)[0] for number in numbers]
    return float(mean.detach()), float(numbers[1].detach()), gradients


@pytest.mark.parametrize("estimator", ["k3", "k2", "unbiased"])
def test_on_policy_each_estimator_has_the_gradient_of_one_divergence(estimator):
    mean, value, [found, of_policy, of_reference] = expected_of(estimator)
    assert (abs(mean - value) < 1e-12) == (estimator != "k2")
    own, others = (of_reference, of_policy) if estimator == "k3" else (of_policy, of_reference)
    torch.testing.assert_close(found, own, rtol=0, atol=1e-9)
    assert float((found - others).abs().max()) > 0.01


@pytest.mark.parametrize("drawn_by", [[0.0] * 4, REFERENCE, [-2.0, 1.0, 0.5, 0.0]])
@pytest.mark.parametrize("estimator", ["k3", "k2", "unbiased"])
def test_behind_the_first_update_the_unbiased_one_alone_is_exact(estimator, drawn_by):
    mean, value, [found, of_policy, of_reference] = expected_of(estimator, drawn_by=drawn_by)
    gaps = [float((found - one).abs().max()) for one in (of_policy, of_reference)]
    if estimator == "unbiased":
        assert mean == pytest.approx(value, abs=1e-12)
        assert gaps[0] < 1e-9
    else:
        assert min(gaps) > 0.01


def test_the_unbiased_one_is_trls_estimate_times_its_ratio():
    now, reference, before = (logprobs(one) for one in (LOGITS, REFERENCE, [0.0, -1.0, 1.0, 0.5]))
    k3 = (reference - now).exp() - (reference - now) - 1
    theirs = k3 * (now - before.detach()).exp()
    ours = kl_estimates(now, reference.detach(), before.detach(), "unbiased")
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    torch.testing.assert_close(
        *(torch.autograd.grad(one.sum(), now, retain_graph=True)[0] for one in (ours, theirs)), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("log_ratio", [20.5, 90.0, 1e4, -90.0, -1e4])
@pytest.mark.parametrize("estimator", ["k3", "k2", "unbiased"])
def test_no_ratio_to_the_first_model_makes_a_gradient_without_a_bound(estimator, log_ratio):
    now = torch.tensor([-log_ratio], requires_grad=True)
    found = kl_estimates(now, torch.zeros(1), now.detach() - 90, estimator)
    found.sum().backward()
    assert bool(found.isfinite())
    assert bool(now.grad.isfinite())
    # never away from the first model
    assert float(now.grad) * -log_ratio >= 0


def test_an_estimate_within_the_bound_is_what_it_was_bit_by_bit():
    now = torch.linspace(-19.9, 0, 399, requires_grad=True)
    reference = torch.linspace(0, -19.9, 399)
    log_ratio = reference - now
    expected = log_ratio.expm1() - log_ratio
    found = kl_estimates(now, reference, now.detach(), "k3")
    assert torch.equal(found, expected)
    assert torch.equal(*(torch.autograd.grad(one.sum(), now)[0] for one in (found, expected)))


@pytest.mark.parametrize("kind", [{"type": "loss", "weight": 0.1}, {"type": "adaptive", **ADAPTIVE}])
def test_an_estimator_that_is_not_named_is_k3(kind):
    assert TypeAdapter(KlParams).validate_python(kind).estimator == "k3"


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
