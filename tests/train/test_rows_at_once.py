"""`model.rows_at_once` and `tokens_at_once`: no forward pass that is learnt from takes more, online
no pass at all, and the step is the one that it is without, also where rows do not divide by
processes."""

import copy

import numpy as np
import pytest
import torch
import yaml
from accelerate import Accelerator
from tiny import play_words, tiny_model, word_task
from tiny_runs import make_model, run_here

from posttrain.models import distributed
from posttrain.models.micro_batches import AtOnce
from posttrain.train.online.params import OnlineParams
from posttrain.train.online.updates import (
    Sample,
    batch_of,
    by_place,
    learn,
    own_micro_batches,
    split_by_length,
    weights_of,
)

ONE_STEP = {
    "sft": {"max_steps": 1, "eval_every_steps": 1, "batch_size": 16},
    "reward_model": {"max_steps": 1, "checkpoint_every_steps": 1},
    "dpo": {"max_steps": 1},
    "kto": {"max_steps": 1},
    "orpo": {"max_steps": 1},
    "process_model": {"max_steps": 1, "checkpoint_every_steps": 1, "batch_size": 16},
    "online": {"max_steps": 1, "tasks_per_step": 16},
}
OF_PAIRS = ("dpo", "orpo", "reward_model")


def first_step(algorithm, folder, **at_once):
    """Its metrics, and the shapes of what went through the model, with gradients if not online."""
    model, shapes = make_model(algorithm, is_adapted=False), []

    def note(_module, arguments, named):
        if torch.is_grad_enabled() or algorithm == "online":
            shapes.append(tuple((named["input_ids"] if "input_ids" in named else arguments[0]).shape))

    model.base_model.register_forward_pre_hook(note, with_kwargs=True)
    _, lines = run_here(algorithm, folder, model, **at_once, **ONE_STEP[algorithm])
    return lines[0], shapes


def agree(found, usual, gap, but=()):
    names = ("loss", "grad_norm", "reward_mean", "entropy", "kl", "demonstration_loss", "eval_loss", "margin")
    names = [name for name in names if name in usual and name not in but]
    assert "grad_norm" in names
    for name in names:
        assert found[name] == pytest.approx(usual[name], rel=gap, abs=gap), name


@pytest.mark.parametrize("algorithm", ONE_STEP)
def test_a_step_is_the_same_however_few_rows_go_through_at_once(tmp_path, algorithm):
    usual, shapes = first_step(algorithm, tmp_path / "usual")
    assert max(shapes)[0] > 2
    for rows_at_once in (1, 2):
        found, shapes = first_step(algorithm, tmp_path / str(rows_at_once), rows_at_once=rows_at_once)
        assert max(shapes)[0] == (2 if algorithm in (*OF_PAIRS, "kto") else rows_at_once)
        agree(found, usual, 1e-4, but=("margin",))


@pytest.mark.parametrize("algorithm", ONE_STEP)
def test_a_step_is_the_same_within_any_number_of_tokens(tmp_path, algorithm):
    """Also metrics, of parts of unequal numbers of rows."""
    usual, shapes = first_step(algorithm, tmp_path / "usual")
    longest = max(width for _, width in shapes)
    for tokens in (longest, 5 * longest):
        found, shapes = first_step(algorithm, tmp_path / str(tokens), tokens_at_once=tokens)
        least = 2 * longest if algorithm in OF_PAIRS else longest
        assert max(rows * width for rows, width in shapes) <= max(tokens, least)
        assert len({rows for rows, _ in shapes}) > 1 or tokens == longest
        # KTO has a mean for the desirable ones, TRL's entropy is of a part's tokens
        agree(found, usual, 1e-6, but=("margin", "entropy") if algorithm in ("dpo", "kto") else ())


def words_of(count):
    """Episodes with an advantage, some cut short."""
    model = tiny_model()
    return [
        Sample(play_words(model, word_task(4 + place % 3, 9), place), np.full(2, 1.0 + place)) for place in range(count)
    ]


@pytest.mark.parametrize("num_processes", [1, 2, 3, 8])
def test_processes_have_as_many_parts_and_none_has_more_rows_than_may_go_through_at_once(monkeypatch, num_processes):
    samples = words_of(20)
    monkeypatch.setattr(distributed, "count", lambda: num_processes)
    for num_rows in range(1, len(samples) + 1):
        for at_once in (None, 1, 2, 3, 7):
            parts = []
            for process in range(num_processes):
                monkeypatch.setattr(distributed, "index", lambda process=process: process)
                parts.append(own_micro_batches(samples[:num_rows], 0, AtOnce(at_once)))
            assert len({len(of_process) for of_process in parts}) == 1
            every = [part for of_process in parts for part in of_process]
            assert all(0 < len(part.input_ids_N_T) <= (at_once or num_rows) for part in every)
            places = [place for part in every for place in part.places_N.tolist() if part.lengths_N.any()]
            assert sorted(places) == list(range(num_rows))


def test_a_part_without_a_row_of_its_own_adds_nothing():
    samples, model, found = words_of(3), tiny_model(), []
    params = OnlineParams.model_validate(yaml.safe_load(OnlineParams.example) | {"type": "online"})
    for num_parts in (3, 5):
        learner, accelerator = copy.deepcopy(model), Accelerator()
        parts = split_by_length(batch_of(samples, pad_id=0), num_parts)
        assert len(parts) == num_parts
        values = by_place(parts, [part.advantages_N_T for part in parts])
        assert {place: values[place].tolist() for place in range(3)} == {0: [1, 1], 1: [2, 2], 2: [3, 3]}
        weights = weights_of(parts, samples, params, 16)
        optimizer = torch.optim.SGD(learner.parameters(), lr=0.1)
        updates = learn(accelerator, learner, optimizer, [parts], weights, [None] * num_parts, params, kl_weight=0.0)
        found.append((updates.metrics(), learner.state_dict()))
    assert found[0][0] == found[1][0]
    for name, weight in found[0][1].items():
        assert torch.equal(weight, found[1][1][name]), name


def test_the_mean_gain_of_ktos_mismatched_episodes_is_of_the_whole_step(tmp_path):
    """A mean of each micro-batch would make another loss for each number of tokens."""
    how = {"max_steps": 3, "lr": 0.02, "optimizer": "adamw", "undesirable_weight": 0.01}
    steps = []
    for tokens in (7, 30, 10_000):
        _, lines = run_here("kto", tmp_path / str(tokens), tokens_at_once=tokens, **how)
        steps.append(np.array([[line["loss"], line["mismatched_gain"]] for line in lines]))
    assert steps[0][2, 1] > 0.01
    for one in steps[:2]:
        np.testing.assert_allclose(one, steps[2], atol=1e-4)
