"""Records of the runs that made the present outputs, beside these."""

import json
import subprocess
from pathlib import Path

import pytest
import yaml

from posttrain.cli.pipeline import verify
from posttrain.provenance.costs import Cost, read_costs
from posttrain.provenance.run_records import (
    RECORDS,
    entry_key,
    read_records,
    record_restored,
    record_run,
    unproven,
)
from posttrain.runtime.exits import DataError

REPOSITORY = Path(__file__).parents[2]


def cost(stage: str, seconds: float = 3.0) -> Cost:
    return Cost(stage, seconds, seconds + 1, 100.0, is_resumed=True, at=1e9, resumed_at=(120,), version="abc+12")


def entry(dep: str, out: str) -> dict:
    return {
        "cmd": "true",
        "deps": [{"path": "a", "hash": "md5", "md5": dep, "size": 1}],
        "outs": [{"path": "b", "hash": "md5", "md5": out, "size": 1}],
    }


def lock(root: Path, **entries: dict) -> None:
    (root / "dvc.lock").write_text(yaml.safe_dump({"schema": "2.0", "stages": entries}))


def recorded(root: Path) -> list[tuple[str, str]]:
    return [(one["stage"], one["key"]) for one in map(json.loads, (root / RECORDS).read_text().splitlines())]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / ".posttrain").mkdir()
    return tmp_path


def test_a_record_is_of_the_entry_beside_it_or_of_none(root):
    one, other = entry("1" * 32, "2" * 32), entry("1" * 32, "3" * 32)
    lock(root, train=one)
    record_run(root, "train", one, cost("train"))
    assert read_records(root) == {"train": read_costs(root)[0]}
    assert read_records(root)["train"].resumed_at == (120,)
    lock(root, train=other)
    assert read_records(root) == {}


def test_another_result_takes_the_place_of_the_record_and_that_of_a_longer_name_stays(root):
    one, other = entry("1" * 32, "2" * 32), entry("1" * 32, "3" * 32)
    record_run(root, "evaluate@sft", one, cost("evaluate@sft"))
    record_run(root, "evaluate", one, cost("evaluate"))
    record_run(root, "evaluate", other, cost("evaluate"))
    assert recorded(root) == [("evaluate", entry_key(other)), ("evaluate@sft", entry_key(one))]


def test_what_comes_back_from_the_cache_has_its_record_again_and_what_another_tree_made_has_none(root):
    one, other = entry("1" * 32, "2" * 32), entry("1" * 32, "3" * 32)
    record_run(root, "train", one, cost("train", 3.0))
    record_run(root, "train", other, cost("train", 5.0))
    lock(root, train=one, foreign=other)
    record_restored(root)
    assert {name: found.seconds for name, found in read_records(root).items()} == {"train": 3.0}
    assert recorded(root) == [("train", entry_key(one))]


def test_the_same_result_again_leaves_the_tree_as_it_was(root):
    one = entry("1" * 32, "2" * 32)
    record_run(root, "train", one, cost("train", 3.0))
    before = (root / RECORDS).read_bytes()
    record_run(root, "train", one, cost("train", 9.0))
    assert (root / RECORDS).read_bytes() == before
    assert [found.seconds for found in read_costs(root)] == [3.0, 9.0]


def test_a_damaged_record_is_none_and_the_next_run_leaves_it_out(root):
    one = entry("1" * 32, "2" * 32)
    lock(root, train=one)
    for text in ("", "{", "[]", json.dumps({"stage": "train", "seconds": -1}), "7", "<<<<<<< ours", "[" * 100_000):
        (root / RECORDS).parent.mkdir(exist_ok=True)
        (root / RECORDS).write_text(text)
        assert read_records(root) == {}
    record_run(root, "train", one, cost("train"))
    assert recorded(root) == [("train", entry_key(one))]


def test_two_branches_that_ran_the_same_stage_merge_and_each_entry_finds_its_record(root):
    """By git's own rule, without any set-up of a clone."""
    one, other = entry("1" * 32, "2" * 32), entry("1" * 32, "3" * 32)

    def git(*arguments: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments], cwd=root, check=True)

    def commit(made: dict) -> None:
        record_run(root, "train", made, cost("train"))
        git("add", "--all")
        git("commit", "--quiet", "--message", "made")

    git("init", "--quiet", "--initial-branch=main")
    (root / ".gitignore").write_text("/.posttrain/\n")
    (root / ".gitattributes").write_bytes((REPOSITORY / ".gitattributes").read_bytes())
    commit(entry("0" * 32, "0" * 32))
    git("checkout", "--quiet", "-b", "exp/a")
    commit(one)
    git("checkout", "--quiet", "main")
    commit(other)
    git("merge", "--quiet", "--no-edit", "exp/a")
    for merged in (one, other):
        lock(root, train=merged)
        assert read_records(root)["train"].key == entry_key(merged)
    record_run(root, "train", one, None)
    assert recorded(root) == [("train", entry_key(one))]


def ours(**more) -> dict:
    return entry("1" * 32, "2" * 32) | {"cmd": "python -m posttrain.provenance.run_stage train"} | more


def test_an_entry_without_a_record_is_one_that_nobody_knows(root):
    made = ours(params={"params.yaml": {"lr": 0.1}})
    record_run(root, "train", made, cost("train"))
    lock(root, train=made)
    assert unproven(root) == []
    others = {
        "another knob": made | {"params": {"params.yaml": {"lr": 0.2}}},
        "another command": made | {"cmd": "python -m posttrain.provenance.run_stage train --fast"},
        "another out": made | {"outs": entry("1" * 32, "3" * 32)["outs"]},
        "another input": made | {"deps": entry("4" * 32, "2" * 32)["deps"]},
    }
    for other in others.values():
        lock(root, train=other)
        assert unproven(root) == ["train"]
    lock(root, train=made | {"cmd": "python prepare.py"})  # no stage of ours: nobody would have recorded it
    assert unproven(root) == []


def test_verify_names_what_is_not_proven(root, monkeypatch):
    lock(root, train=ours())
    monkeypatch.chdir(root)
    with pytest.raises(DataError, match=r"train: .* has no run with the inputs and outputs"):
        verify()
    record_run(root, "train", ours(), cost("train"))
    verify()


def test_the_committed_lock_of_this_repository_is_proven(tmp_path):
    for name in ("dvc.lock", RECORDS):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((REPOSITORY / name).read_bytes())
    assert unproven(tmp_path) == []
