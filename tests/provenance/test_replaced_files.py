"""Files replaced by others of the same size, time and inode, as `cp -p`, `rsync -t --inplace` and
tar do: DVC alone does not see them; after any command of ours it does."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.toy_tree import dvc, environment, make_tree
from posttrain.pipeline.executor import StageExecutor
from posttrain.pipeline.plan import read_plan
from posttrain.provenance.cache_integrity import check_files
from posttrain.provenance.fingerprint import md5_of
from posttrain.provenance.lockfile import lock_entries
from posttrain.provenance.receipts import Dvc, Receipt, apply_receipts

pytestmark = [pytest.mark.needs_provenance, pytest.mark.xdist_group("windows")]
UNSEEN = "replaced by a file of the same size and time"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = make_tree(tmp_path_factory.mktemp("made") / "tree")
    assert dvc(root, "repro").returncode == 0
    return root


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    """A copy in which everything has run, and DVC has looked at every file."""
    subprocess.run(["cp", "-a", str(made), str(tmp_path / "tree")], check=True)
    assert "up to date" in dvc(tmp_path / "tree", "repro").stdout
    return tmp_path / "tree"


def replace_unseen(path: Path, text: str) -> None:
    """With the size, times and inode that it had."""
    status = path.stat()
    assert len(text) == status.st_size
    path.write_text(text)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def verify(root: Path) -> str:
    command = [Path(sys.executable).with_name("posttrain"), "verify"]
    return subprocess.run(command, cwd=root, env=environment(), capture_output=True, text=True, check=True).stderr


def plan(root: Path) -> str:
    command = [Path(sys.executable).with_name("posttrain"), "plan"]
    done = subprocess.run(command, cwd=root, env=environment(), capture_output=True, text=True, check=True)
    assert "data/source" in done.stdout
    return done.stderr


def start_a_flow(root: Path) -> str:
    StageExecutor(root).close()
    return UNSEEN


@pytest.mark.parametrize("command", [verify, plan, start_a_flow])
def test_an_input_that_dvc_does_not_see_is_seen_after_any_command_of_ours(root: Path, command: Callable[[Path], str]):
    replace_unseen(root / "data/source", "source 9\n")
    assert "up to date" in dvc(root, "repro").stdout, "DVC sees it by itself, and the test tests nothing"
    assert UNSEEN in command(root)
    assert dvc(root, "repro").returncode == 0
    assert "source 9" in (root / "data/refined").read_text()
    said: list[str] = []
    check_files(root, said.append)
    assert not said


def test_a_file_in_a_folder_and_an_output_are_seen_too(root: Path):
    replace_unseen(root / "ours/words.py", "WORD = 'drow'\n")
    replace_unseen(root / "data/refined", (root / "data/refined").read_text().replace("word", "drow"))
    assert "up to date" in dvc(root, "repro").stdout
    said: list[str] = []
    check_files(root, said.append)
    assert "data/refined" in said[0]
    assert "ours/words.py" in said[0]
    assert [stage.name for stage in read_plan(root) if stage.changed][:2] == ["make", "refine"]


def test_a_stage_that_runs_for_another_reason_reads_and_records_the_new_file_once(root: Path):
    """DVC would record the old hash after the stage has read the new file, at every run."""
    replace_unseen(root / "data/source", "source 9\n")
    text = (root / "params.yaml").read_text()
    (root / "params.yaml").write_text(text.replace("\nseed: 1", "\nseed: 2"))
    done = dvc(root, "repro")
    assert done.returncode == 0
    assert "became while it was recorded" not in done.stdout
    assert "source 9" in (root / "data/refined").read_text()
    assert "up to date" in dvc(root, "repro").stdout


def test_what_dvc_recorded_by_a_remembered_hash_is_corrected_with_the_reason(root: Path):
    """The guard was dead, or slower than the stage."""
    entry = lock_entries(root)["make"]
    replace_unseen(root / "data/source", "source 9\n")
    deps = [dep | {"md5": md5_of(root / dep["path"])} if dep["path"] == "data/source" else dep for dep in entry["deps"]]
    params = {"params.yaml": (root / "params.yaml").read_text()}
    Receipt("make", entry["cmd"], deps, params, entry["outs"], None, Dvc(1, 0.0)).write(root)
    said: list[str] = []
    assert apply_receipts(root, said.append) == ["make"]
    assert "made from earlier contents of data/source, whose hash DVC remembered" in said[0]
    assert "Stage 'make' didn't change" in dvc(root, "repro").stdout
