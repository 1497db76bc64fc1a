import pytest

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
