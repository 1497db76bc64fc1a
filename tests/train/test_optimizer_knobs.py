"""Knobs of the optimizer and of the rate's course reach every training that has them, and left out
they are what they were before there were any."""

import pytest
from tiny_runs import digest_of, run_here, sft_params

from posttrain.models.optimizers import rate_at
from posttrain.models.params import OptimizerParams

KNOBS = {
    "max_grad_norm": 1e-3,
    "betas": [0.5, 0.6],
    "weight_decay": 0.5,
    "lr_warmup_frac": 0.5,
    "lr_schedule": "constant",
}
SIZES = {
    "sft": {"max_steps": 4, "eval_every_steps": 4, "lr_warmup_frac": 0.25},
    "online": {"max_steps": 4, "tasks_per_step": 4},
    "dpo": {"max_steps": 4},
    "kto": {"max_steps": 4},
    "orpo": {"max_steps": 4},
}
SCHEDULES = ["linear", "constant", "cosine"]


def trained(algorithm, folder, **knobs):
    """A digest of the weights, and the lines of the log."""
    model, lines = run_here(algorithm, folder, **{**SIZES[algorithm], "optimizer": "adamw", **knobs})
    return digest_of(model), lines


@pytest.fixture(scope="module", params=SIZES)
def usual(request, tmp_path_factory):
    return request.param, trained(request.param, tmp_path_factory.mktemp(request.param))


def test_left_out_they_are_the_defaults(usual, tmp_path):
    algorithm, expected = usual
    written = sft_params() if algorithm == "sft" else OptimizerParams(lr=1e-3, optimizer="adamw")
    own = {name: getattr(written, name) for name in KNOBS} | SIZES[algorithm]
    assert trained(algorithm, tmp_path, **own) == expected


@pytest.mark.parametrize("knob", KNOBS)
def test_each_reaches_the_weights(usual, tmp_path, knob):
    algorithm, (digest, _) = usual
    assert trained(algorithm, tmp_path, **{knob: KNOBS[knob]})[0] != digest


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("algorithm", SIZES)
def test_the_rate_that_is_logged_is_the_schedules(tmp_path, algorithm, schedule):
    _, lines = trained(algorithm, tmp_path, lr=1e-2, lr_warmup_frac=0.5, lr_schedule=schedule)
    found = [line["lr"] for line in lines if "lr" in line]
    assert found == pytest.approx([1e-2 * rate_at(step / 4, 0.5, schedule) for step in range(4)])
