import errno

import pytest

from posttrain.train.checkpointing import MARKER, checkpoints_in, is_complete, newest_complete, no_room, prune, seal


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


def test_a_file_that_is_gone_makes_its_checkpoint_incomplete(tmp_path):
    bad = checkpoint(tmp_path, 10)
    (bad / "weights").unlink()

    assert not is_complete(bad)
    assert newest_complete(tmp_path) is None


def test_a_marker_cut_off_in_the_middle_is_no_marker(tmp_path):
    bad = checkpoint(tmp_path, 10)
    (bad / MARKER).write_text('{"files": {"weig')

    assert not is_complete(bad)


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


def test_a_full_disk_is_an_interruption_that_names_what_is_kept(tmp_path):
    checkpoint(tmp_path, 9)

    end = no_room(tmp_path, OSError(errno.ENOSPC, "No space left on device"))

    assert end.code == 75
    assert "checkpoint-9" in str(end)
    assert "free some space and run again" in str(end)


def test_a_full_disk_that_a_library_reports_in_its_own_words_is_recognised(tmp_path):
    assert no_room(tmp_path, RuntimeError("I/O error: No space left on device (os error 28)")).code == 75


def test_another_failure_is_not_taken_for_a_full_disk(tmp_path):
    assert no_room(tmp_path, PermissionError(errno.EACCES, "Permission denied")) is None
    assert no_room(tmp_path, RuntimeError("shape mismatch")) is None
