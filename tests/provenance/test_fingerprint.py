"""Inputs of a stage are read from `dvc.yaml`; the fingerprint follows contents and nothing else."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from dvc_data.hashfile.build import build
from dvc_data.hashfile.db import HashFileDB
from dvc_objects.fs import LocalFileSystem

from posttrain.provenance.fingerprint import (
    StageInputs,
    changes,
    lock_form,
    read_stage_inputs,
    take_fingerprint,
)
from posttrain.provenance.frozen_copy import freeze
from posttrain.runtime.exits import ConfigurationError

DVC_YAML = """
stages:
  train:
    cmd: python -m stages.train
    deps: [code, data.txt]
    params: [seed, train.lr]
  score:
    foreach: {easy: data/easy, hard: data/hard}
    do: {cmd: "python -m stages.score ${key}", deps: ["${item}"], params: [seed]}
  judge:
    matrix: {policy: [base, sft]}
    cmd: python -m stages.judge ${item.policy}
    deps: ["models/${item.policy}"]
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("dvc.yaml").write_text(DVC_YAML)
    Path("params.yaml").write_text("seed: 1\ntrain: {lr: 0.1, note: x}\n")
    Path("code").mkdir()
    Path("code/a.py").write_text("a = 1\n")
    Path("data.txt").write_text("rows\n")
    Path(".dvcignore").write_text("__pycache__\n")
    return tmp_path


def inputs() -> StageInputs:
    return read_stage_inputs(Path("dvc.yaml"), "train")


def test_an_item_of_foreach_and_of_matrix_fills_the_template(root: Path):
    assert read_stage_inputs(Path("dvc.yaml"), "score", "hard") == StageInputs(
        "python -m stages.score hard", ("data/hard",), ("seed",)
    )
    assert read_stage_inputs(Path("dvc.yaml"), "judge", "sft").deps == ("models/sft",)


def test_an_unknown_stage_or_item_is_a_wrong_configuration(root: Path):
    with pytest.raises(ConfigurationError, match="no stage 'trian'"):
        read_stage_inputs(Path("dvc.yaml"), "trian")
    with pytest.raises(ConfigurationError, match="no score@medium; it lists easy, hard"):
        read_stage_inputs(Path("dvc.yaml"), "score", "medium")


def test_times_bytecode_and_other_keys_do_not_change_the_digest(root: Path):
    before = take_fingerprint(inputs())
    os.utime("data.txt", ns=(1, 1))
    Path("code/__pycache__").mkdir()
    Path("code/__pycache__/a.pyc").write_bytes(b"x")
    Path("params.yaml").write_text("seed: 1\ntrain: {note: another, lr: 0.1}\nother: 3\n")
    after = take_fingerprint(inputs(), earlier=before)
    assert after.key == before.key
    assert changes(before, after) == []


def test_an_edit_of_a_file_a_new_file_a_lost_file_and_a_param_are_each_named(root: Path):
    before = take_fingerprint(inputs())
    Path("data.txt").write_text("more\n")
    Path("code/b.py").write_text("b = 2\n")
    Path("code/a.py").unlink()
    Path("params.yaml").write_text("seed: 1\ntrain: {lr: 0.2}\n")
    after = take_fingerprint(inputs(), earlier=before)
    assert changes(before, after) == ["code/a.py", "code/b.py", "data.txt", "params.yaml:train.lr"]
    assert after.key != before.key


def dvcs_md5(folder: Path, cache: Path) -> str:
    local = LocalFileSystem()
    return build(HashFileDB(local, str(cache)), str(folder), local, "md5", dry_run=True)[2].hash_info.value


def two_links_in_a_circle(folder: Path) -> None:
    for name in ("up", "again"):
        (folder / name).symlink_to(".")


def a_link_to_a_file(folder: Path) -> None:
    (folder / "b.py").symlink_to("../data.txt")


def a_link_to_a_folder(folder: Path) -> None:
    (folder.parent / "far").mkdir()
    (folder.parent / "far/c.py").write_text("c = 3\n")
    (folder / "far").symlink_to("../far")


def a_folder_that_is_a_link(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to("elsewhere")


@pytest.mark.parametrize("link", [a_link_to_a_file, a_link_to_a_folder, a_folder_that_is_a_link, two_links_in_a_circle])
def test_links_in_a_folder_count_as_dvc_counts_them(root: Path, tmp_path: Path, link: Callable[[Path], None]):
    link(root / "code")
    folder = lock_form(["code"], take_fingerprint(inputs()).files)[0]
    assert folder["md5"] == dvcs_md5(root / "code", tmp_path / "cache")


def test_a_frozen_copy_lacks_what_lies_behind_a_link_to_a_folder(root: Path):
    a_link_to_a_folder(root / "code")
    freeze(inputs(), root, root / "copy")
    assert [path.name for path in Path("copy/code").iterdir()] == ["a.py"]
