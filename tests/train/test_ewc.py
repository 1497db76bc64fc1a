"""Elastic weight consolidation: its penalty and Fisher information against what they are by hand,
and trainings under it."""

import signal

import pytest
import torch
from tiny import copy_rows, tiny_model
from tiny_runs import DEMONSTRATIONS, Death, run_here, train

from posttrain.models.token_logprobs import labels_of
from posttrain.runtime.exits import ConfigurationError, DataError
from posttrain.train import sft
from posttrain.train.ewc import Ewc, ewc_of, fisher_diagonal


def test_the_penalty_and_its_gradient_are_those_of_equation_3():
    """λ = 4, F = (2, 1/2), moved by (1/2, 2): 4/2 (2/4 + 4/2) = 5, and 4 · 2 · 1/2 = 4 · 1/2 · 2 =
    4 on top of the gradient of the loss; a weight without F has no pull."""
    model = torch.nn.Linear(2, 1)
    ewc = Ewc(4.0, {"weight": torch.tensor([[1.0, 1.0]])}, {"weight": torch.tensor([[2.0, 0.5]])})
    for gradient in (None, torch.tensor([[10.0, 20.0]])):
        model.weight.data, model.weight.grad = torch.tensor([[1.5, 3.0]]), gradient
        assert ewc.add_gradients(model).item() == 5.0
        assert model.weight.grad.tolist() == ([[14.0, 24.0]] if gradient is not None else [[4.0, 4.0]])
    assert model.bias.grad is None


def test_fisher_information_is_the_mean_over_rows_of_the_squared_gradient_of_a_rows_log_likelihood():
    model, rows = tiny_model(), copy_rows(3)[0]
    found = fisher_diagonal(model, rows)
    expected = {name: torch.zeros_like(one) for name, one in model.named_parameters()}
    for row in rows:
        model.zero_grad()
        logits = model(torch.tensor([row.input_ids])).logits[0, :-1]
        targets = torch.tensor(labels_of(row.input_ids, row.mask)[1:])
        torch.nn.functional.cross_entropy(logits, targets, reduction="sum").backward()
        for name, one in model.named_parameters():
            expected[name] += one.grad**2 / 3
    assert found.keys() == expected.keys()
    for name, one in found.items():
        torch.testing.assert_close(one, expected[name])


def trained_far(folder, weight, **changes):
    """Metrics of an SFT under the penalty, and how far the weights went."""
    model, start = tiny_model(), tiny_model()
    ewc = ewc_of(model, DEMONSTRATIONS, weight, seed=1) if weight else None
    model, lines = run_here("sft", folder, model, ewc=ewc, optimizer="adamw", **changes)
    pairs = zip(model.parameters(), start.parameters(), strict=True)
    return lines, sum(float((one - other).square().sum().detach()) for one, other in pairs)


def test_weights_stay_nearer_the_more_the_penalty_weighs(tmp_path):
    free, some, much = (trained_far(tmp_path / str(weight), weight)[1] for weight in (0, 10, 1000))
    assert much < some < free


def test_the_penalty_counts_once_a_step_whatever_parts_it_is_cut_into(tmp_path, monkeypatch):
    beside, _ = trained_far(tmp_path / "beside", 1000, max_steps=4)
    monkeypatch.setattr(sft, "is_small_on_cpu", lambda model: False)
    after_another, _ = trained_far(tmp_path / "after", 1000, max_steps=4)
    without, _ = trained_far(tmp_path / "without", 0, max_steps=4)

    def losses(lines):
        return [line["loss"] for line in lines if "loss" in line]

    assert losses(beside) == pytest.approx(losses(after_another), rel=1e-3)
    assert losses(without)[3] != pytest.approx(losses(beside)[3], abs=1e-2)


def test_shards_and_a_lack_of_rows_are_refused(monkeypatch):
    with pytest.raises(DataError, match="ewc_weight is 2, and there are no demonstrations"):
        ewc_of(tiny_model(), [], 2.0, seed=1)
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    with pytest.raises(ConfigurationError, match="ewc_weight is 2, and FSDP and DeepSpeed cut"):
        ewc_of(tiny_model(), DEMONSTRATIONS, 2.0, seed=1)


@pytest.mark.needs_killed
@pytest.mark.xdist_group("rejection_sampling")
def test_rejection_sampling_with_ewc_and_observations_resumes_to_the_same_bytes(tmp_path):
    knobs = {"ewc_weight": 10.0, "observation_weight": 0.5, "observations_of": "all"}
    code, expected = train("rejection_sampling", tmp_path / "whole", **knobs)
    died, _ = train("rejection_sampling", tmp_path / "cut", Death(after=11), **knobs)
    assert (code, died) == (0, -signal.SIGKILL)
    assert train("rejection_sampling", tmp_path / "cut", **knobs) == (0, expected)
    plain = train("rejection_sampling", tmp_path / "plain", **knobs | {"ewc_weight": 0.0})
    assert plain[1]["weights"] != expected["weights"]
