"""`model.rows_at_once`: no forward pass that is learnt from takes more rows, and the step is the
one that it is without."""

import pytest
import torch
from tiny_runs import make_model, run_here

ONE_STEP = {
    "sft": {"max_steps": 1, "eval_every_steps": 1, "batch_size": 16},
    "reward_model": {"max_steps": 1, "checkpoint_every_steps": 1},
    "dpo": {"max_steps": 1},
    "kto": {"max_steps": 1},
    "orpo": {"max_steps": 1},
    "online": {"max_steps": 1, "tasks_per_step": 16},
}


def first_step(algorithm, folder, rows_at_once):
    """Its metrics, and the most rows that went through the model with gradients."""
    model, rows = make_model(algorithm, is_adapted=False), []

    def count(_module, arguments, named):
        if torch.is_grad_enabled():
            rows.append(len(named["input_ids"] if "input_ids" in named else arguments[0]))

    model.base_model.register_forward_pre_hook(count, with_kwargs=True)
    _, lines = run_here(algorithm, folder, model, rows_at_once=rows_at_once, **ONE_STEP[algorithm])
    return lines[0], max(rows)


@pytest.mark.parametrize("algorithm", ONE_STEP)
def test_a_step_is_the_same_however_few_rows_go_through_at_once(tmp_path, algorithm):
    usual, most = first_step(algorithm, tmp_path / "usual", None)
    assert most > 2
    for rows_at_once in (1, 2):
        found, rows = first_step(algorithm, tmp_path / str(rows_at_once), rows_at_once)
        is_of_pairs = algorithm not in ("sft", "online")
        assert rows == (2 if is_of_pairs else rows_at_once)
        names = {"loss", "grad_norm", "reward_mean", "entropy", "kl"} & usual.keys()
        assert "grad_norm" in names
        assert {name: found[name] for name in names} == pytest.approx({name: usual[name] for name in names}, rel=1e-4)
