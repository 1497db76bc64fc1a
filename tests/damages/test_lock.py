"""A damaged `dvc.lock`: put back, or what it still calls current is so."""

import shutil
from pathlib import Path

import pytest

from benchmarks.toy_tree import Oracle, dvc, make_tree
from posttrain.pipeline.graph import read_tree
from posttrain.provenance.lockfile import lock_entries
from posttrain.provenance.receipts import apply_receipts
from posttrain.runtime.exits import StageError
from tests.damages.damaged import NUM_DAMAGES, REMEDY, damage

pytestmark = [pytest.mark.needs_provenance, pytest.mark.xdist_group("windows")]


def test_a_damaged_lock_is_put_back_or_calls_nothing_current_that_is_not(tmp_path: Path):
    root, oracle = make_tree(tmp_path / "tree"), Oracle()
    for path in ("stages/make.py", "stages/refine.py", "stages/judge.py", "data/source"):
        oracle.learn((root / path).read_text())
    oracle.learn_words("word")
    assert dvc(root, "repro").returncode == 0
    lock, other = root / "dvc.lock", tmp_path / "other.lock"
    whole = lock.read_text()
    other.write_text(whole[: whole.index("  refine:")])
    num_put_back = num_refused = 0
    for number in range(NUM_DAMAGES):
        what = damage(lock, number, sibling=other)
        refusal = ""
        try:
            apply_receipts(root, str)
            num_put_back += lock.read_text(errors="replace") == whole
            _, current = read_tree(root)
        except StageError as error:
            refusal, current = str(error), frozenset()
        num_refused += bool(refusal)
        assert not refusal or ("dvc.lock" in refusal and (REMEDY.search(refusal) or "dvc status" in refusal)), (
            f"{what}: {refusal}"
        )
        if not refusal:
            false = oracle.false_entries({name: entry for name, entry in lock_entries(root).items() if name in current})
            assert false == [], what
        if lock.is_dir():
            shutil.rmtree(lock)
        lock.write_text(whole)
    assert num_put_back > NUM_DAMAGES / 4
    assert num_refused < NUM_DAMAGES / 4
