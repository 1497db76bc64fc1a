"""The frozen copy that a stage runs on is read-only, and looked at again."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from posttrain.provenance.fingerprint import StageInputs
from posttrain.provenance.frozen_copy import (
    FrozenCopy,
    freeze,
    make_read_only,
    refuse_if_touched,
    snapshot_files,
)
from posttrain.runtime.exits import Interrupted

INPUTS = StageInputs("train", ("data", "posttrain/train.py"), ("seed",), ("data_out/model", "report.json"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    texts = {
        "data/rows": "rows\n",
        "posttrain/train.py": "STEP = 1\n",
        "posttrain/runner.py": "NAME = 'runner'\n",
        "params.yaml": "seed: 1\n",
        "dvc.yaml": "stages: {}\n",
    }
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "data_out").mkdir()
    return root


@pytest.fixture
def copy(root: Path, tmp_path: Path) -> FrozenCopy:
    return freeze(INPUTS, root, tmp_path / "copy")


def look(copy: FrozenCopy) -> None:
    refuse_if_touched(copy.folder, copy.files, INPUTS.outs)


def sed(old: str, new: str) -> Callable[[Path], object]:
    line = f"grep -rl --include='*.py' {old} . | xargs sed -i s/{old}/{new}/"
    return lambda folder: subprocess.run(line, shell=True, cwd=folder, check=True)


def rewrite(folder: Path) -> None:
    """The same bytes, and the time put back."""
    path = folder / "data/rows"
    before = path.stat()
    path.chmod(0o644)
    path.write_bytes(path.read_bytes())
    path.chmod(0o444)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def swap(folder: Path) -> None:
    shutil.copy2(folder / "data/rows", folder / "aside")
    (folder / "aside").replace(folder / "data/rows")


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (sed("STEP", "PACE"), "posttrain/train.py"),
        (sed("runner", "jumper"), "posttrain/runner.py"),  # no dep of the stage
        (lambda folder: (sed("STEP", "PACE")(folder), sed("PACE", "STEP")(folder)), "posttrain/train.py"),
        (rewrite, "data/rows"),
        (swap, "data/rows"),
        (lambda folder: (folder / "data/rows").unlink(), "data/rows"),
        (lambda folder: (folder / "json.py").write_text("forged = True"), "json.py"),
        (lambda folder: (folder / "params.yaml").touch(), "params.yaml"),
    ],
    ids=["replace", "replace in the runner", "replace and back", "rewrite", "swap", "delete", "plant", "touch"],
)
def test_an_edit_of_the_copy_is_seen_though_it_was_taken_back(copy: FrozenCopy, edit: Callable, named: str):
    look(copy)
    edit(copy.folder)
    with pytest.raises(Interrupted, match=f"{named} changed in the copy that the stage ran on"):
        look(copy)


def test_what_the_stage_itself_writes_is_no_edit(copy: FrozenCopy):
    (copy.folder / "data_out/model").mkdir(parents=True)
    (copy.folder / "data_out/model/code.py").write_text("its own")
    (copy.folder / "report.json").write_text("{}")
    (copy.folder / ".cost.jsonl").write_text("{}")
    (copy.folder / "data/rows").read_bytes()
    look(copy)


def test_the_copy_is_read_only_but_where_the_stage_writes(copy: FrozenCopy):
    writable = {
        path.relative_to(copy.folder).as_posix()
        for path in [copy.folder, *copy.folder.rglob("*")]
        if not path.is_symlink() and path.stat().st_mode & 0o222
    }
    assert writable == {"."}


def test_a_snapshot_is_read_only_but_where_the_stage_and_dvc_write_and_each_file_of_it_is_looked_at(
    root: Path, tmp_path: Path
):
    (root / ".dvc").mkdir()
    make_read_only(root, INPUTS.outs)
    writable = {path.relative_to(root).as_posix() for path in root.rglob("*") if path.stat().st_mode & 0o222}
    assert writable == {".dvc", "data_out", "dvc.yaml", "params.yaml"}
    os.link(root / "data/rows", tmp_path / "object")
    files = snapshot_files(root)
    (root / "dvc.lock").write_text("DVC's own")
    (tmp_path / "object").unlink()  # as DVC makes and removes names of its objects
    refuse_if_touched(root, files, INPUTS.outs)
    (root / "dvc.yaml").touch()
    with pytest.raises(Interrupted, match=r"dvc\.yaml changed"):
        refuse_if_touched(root, files, INPUTS.outs)
