import math

import pytest
import torch
from safetensors.torch import save_file
from tiny import tiny_model, tiny_reward_model
from tiny_runs import run_here

from posttrain.runtime.exits import StoppedByAlarm
from posttrain.train.checkpointing import checkpoints_in, newest_complete, prune, seal


def checkpoint(folder, step, *, is_sealed=True):
    path = folder / f"checkpoint-{step}"
    path.mkdir()
    (path / "weights").write_text(f"weights of {step}")
    if is_sealed:
        seal(path)
    return path


def test_a_run_goes_on_from_the_newest_checkpoint_that_is_complete(tmp_path):
    checkpoint(tmp_path, 9)
    newest = checkpoint(tmp_path, 80)

    assert newest_complete(tmp_path) == newest


def test_a_half_written_checkpoint_is_ignored_and_removed(tmp_path):
    good = checkpoint(tmp_path, 9)
    bad = checkpoint(tmp_path, 10, is_sealed=False)

    assert newest_complete(tmp_path) == good
    assert not bad.exists()


@pytest.mark.parametrize("content", ["weights of", "weights of 99"])
def test_a_file_that_is_not_what_was_sealed_makes_its_checkpoint_incomplete(tmp_path, content):
    good, bad = checkpoint(tmp_path, 9), checkpoint(tmp_path, 10)
    (bad / "weights").write_text(content)

    assert newest_complete(tmp_path) == good


def test_the_two_newest_and_the_best_are_kept(tmp_path):
    best = checkpoint(tmp_path, 3)
    for step in (7, 20, 100):
        checkpoint(tmp_path, step)

    prune(tmp_path, keep=best)

    assert [path.name for path in checkpoints_in(tmp_path)] == ["checkpoint-3", "checkpoint-20", "checkpoint-100"]


def test_other_folders_are_left_alone(tmp_path):
    (tmp_path / "checkpoint-final").mkdir()
    (tmp_path / "runs").mkdir()

    assert newest_complete(tmp_path) is None
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_weights_that_are_not_all_finite_are_never_sealed(tmp_path, value):
    good, bad = checkpoint(tmp_path, 9), checkpoint(tmp_path, 10, is_sealed=False)
    weights = torch.zeros(3, 4, dtype=torch.bfloat16)
    whole = {"sound": weights, "counts": torch.ones(2, dtype=torch.int8)}
    save_file(whole, bad / "critic.safetensors")
    broken = weights.clone()
    broken[2, 1] = value
    save_file({**whole, "head": broken}, bad / "model.safetensors")
    with pytest.raises(StoppedByAlarm, match=r"head of .*checkpoint-10/model.safetensors .* not all finite"):
        seal(bad)
    assert newest_complete(tmp_path) == good


@pytest.mark.parametrize("algorithm", ["sft", "online", "dpo", "kto", "orpo", "reward_model"])
def test_a_training_whose_weights_are_no_numbers_ends_with_the_checkpoint_before(tmp_path, algorithm):
    """Weights go wrong behind the checkpoint of the fourth step: a trainer's in the sixth, in our
    own loop, whose engine would lose all episodes, behind the play of the eighth."""
    model = tiny_reward_model() if algorithm == "reward_model" else tiny_model()

    def spoil(step, *_):
        if step == (8 if algorithm == "online" else 6):
            with torch.no_grad():
                model.model.norm.weight.fill_(math.nan)

    hook = {"on_step": spoil} if algorithm == "online" else {"progress": spoil}
    with pytest.raises(StoppedByAlarm, match="not all finite"):
        run_here(algorithm, tmp_path, model, **hook)
    assert newest_complete(tmp_path) == tmp_path / "checkpoint-4"
