"""Damaged checkpoints: a run goes on from one that is whole, or begins anew."""

import json
import random
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from posttrain.train.checkpointing import MARKER, checkpoints_in, newest_complete, seal
from tests.damages.damaged import NUM_DAMAGES, check, damage, fresh_copy

FILES = ("model.safetensors", "optimizer.pt", "trainer_state.json", "metrics.jsonl")


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    for step in (2, 4):
        checkpoint = folder / f"checkpoint-{step}"
        checkpoint.mkdir()
        for name in FILES:
            (checkpoint / name).write_bytes(random.Random(f"{step} {name}").randbytes(9000))
        weights = torch.rand(2250, generator=torch.Generator().manual_seed(step))
        save_file({"weights": weights}, checkpoint / "model.safetensors")
        (checkpoint / "trainer_state.json").write_text(json.dumps({"global_step": step}))
        seal(checkpoint)
    return folder


def found(folder: Path) -> tuple[str, list[bytes]] | None:
    newest = newest_complete(folder)
    return None if newest is None else (newest.name, [(newest / name).read_bytes() for name in FILES])


@pytest.mark.parametrize("name", [*FILES, MARKER])
def test_of_a_damaged_checkpoint_nothing_is_used(clean, tmp_path, capsys, name):
    whole, before, num_set_aside = found(clean), (clean / "checkpoint-2"), 0
    earlier = ("checkpoint-2", [(before / one).read_bytes() for one in FILES])
    for number in range(NUM_DAMAGES):
        folder = fresh_copy(clean, tmp_path / "damaged")
        what = damage(folder / "checkpoint-4" / name, number, sibling=folder / "checkpoint-2" / name)
        check(lambda: found(folder), whole, name=name, what=what, is_part=lambda result: result == earlier)  # noqa: B023
        words = capsys.readouterr().err.splitlines()
        is_set_aside = not (folder / "checkpoint-4").exists()
        assert len(words) == is_set_aside
        assert all(
            "checkpoint-4 is half written or damaged" in word and ("sealed" in word or MARKER in word) for word in words
        )
        num_set_aside += is_set_aside
    assert num_set_aside >= NUM_DAMAGES - 3  # but for blanks of the marker, and a block put over itself


@pytest.mark.parametrize(
    "marker",
    [
        "{}",
        "[]",
        "3",
        '{"files": {}}',
        '{"files": []}',
        '{"files": 3}',
        '{"files": {"model.safetensors": 3}}',
        '{"files": {"../x": "y"}}',
        "[" * 99999,
    ],
)
def test_a_marker_of_another_shape_is_none(clean, tmp_path, marker):
    folder = fresh_copy(clean, tmp_path / "damaged")
    (folder / "checkpoint-4" / MARKER).write_text(marker)
    assert newest_complete(folder).name == "checkpoint-2"


def test_what_else_stands_in_a_checkpoints_place_does_not_hold_a_run_up(clean, tmp_path):
    folder = fresh_copy(clean, tmp_path / "damaged")
    (folder / "checkpoint-6").write_text("a file")
    (folder / "checkpoint-8").symlink_to(folder / "gone")
    for name in ("checkpoint--3", "checkpoint-nan", "checkpoint-²", f"checkpoint-{'9' * 200}", "checkpoint-1e3"):
        (folder / name).mkdir()
    assert newest_complete(folder).name == "checkpoint-4"
    assert [path.name for path in checkpoints_in(folder)] == ["checkpoint-2", "checkpoint-4"]
    shutil.rmtree(folder)
