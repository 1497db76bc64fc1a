"""The runner of a stage, as the separate program that DVC would start."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forked import python
from tests.waiting import wait_until

PROGRAM = """
import sys, time, pathlib
from posttrain.runtime.exits import DataError
from posttrain.provenance.runner import run_stage

def toy_stage(run):
    what = pathlib.Path("what").read_text()
    pathlib.Path("started").write_text(str(run.checkpoint_dir))
    run.checkpoint_dir.mkdir(parents=True, exist_ok=True)
    if what == "bad data":
        raise DataError("rows.parquet has 3 rows of 5 unpaired; nothing can be learnt from them. Repair the export")
    if what == "full disk":
        raise OSError(28, "No space left on device", "model.safetensors")
    if what == "wait":
        while not pathlib.Path("go").exists():
            time.sleep(0.02)
    for done in range(1, 4):
        run.progress(done, 3, "loss 0.5")

run_stage(toy_stage)
"""


@pytest.fixture
def root(tmp_path: Path, repository: Path) -> Path:
    (tmp_path / "toy_stage.py").write_text(PROGRAM)
    (tmp_path / "params.yaml").write_bytes((repository / "params.yaml").read_bytes())
    (tmp_path / "dvc.yaml").write_text(
        "stages: {toy_stage: {cmd: python toy_stage.py, deps: [what], params: [seed]}}\n"
    )
    (tmp_path / "what").write_text("")
    return tmp_path


def start(root: Path, repository: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(repository)}
    return subprocess.Popen(
        [sys.executable, "toy_stage.py"], cwd=root, env=environment, stderr=subprocess.PIPE, text=True
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, errors = process.communicate(timeout=60)
    return process.returncode, errors


def finish(root: Path) -> tuple[int, str]:
    """One that nothing happens to while it runs."""
    done = python("toy_stage.py", cwd=root)
    return done.returncode, done.stderr


def test_a_stage_shows_its_progress_and_leaves_its_cost(root: Path, repository: Path):
    code, errors = finish(root)
    assert code == 0
    assert "[toy_stage] 3/3" in errors
    assert "loss 0.5" in errors
    assert '"stage": "toy_stage"' in (root / ".posttrain" / "costs.jsonl").read_text()


def test_each_end_has_its_exit_code_and_a_message_without_a_traceback(root: Path, repository: Path):
    (root / "what").write_text("bad data")
    code, errors = finish(root)
    assert (code, "Traceback" in errors) == (65, False)
    assert "bad data: rows.parquet has 3 rows" in errors
    (root / "what").write_text("full disk")
    code, errors = finish(root)
    assert code == 75
    assert "no space left on the disk while writing model.safetensors" in errors
    (root / "params.yaml").write_text("seed: 1\n")
    code, errors = finish(root)
    assert code == 78
    assert "world: missing" in errors


def test_an_edit_of_a_dependency_or_a_parameter_while_the_stage_runs_fails_it(root: Path, repository: Path):
    (root / "what").write_text("wait")
    process = start(root, repository)
    wait_until((root / "started").exists)
    params = (root / "params.yaml").read_text()
    (root / "params.yaml").write_text(params.replace("seed: 1 ", "seed: 2 ", 1))
    (root / "go").touch()
    code, errors = ended(process)
    assert code == 75
    assert "params.yaml:seed changed while the stage ran" in errors


def test_a_second_process_of_the_same_stage_is_refused_until_the_first_is_dead(root: Path, repository: Path):
    (root / "what").write_text("wait")
    first = start(root, repository)
    wait_until((root / "started").exists)
    code, errors = finish(root)
    assert code == 75
    assert f"process {first.pid} is still running this stage" in errors
    first.send_signal(signal.SIGKILL)
    ended(first)
    (root / "go").touch()
    assert finish(root)[0] == 0


def test_two_snapshots_that_share_checkpoints_do_not_write_them_at_once(root: Path, repository: Path):
    (root / "what").write_text("wait")
    second = root / "second"
    shutil.copytree(root, second, ignore=shutil.ignore_patterns("second"))
    (root / ".posttrain/checkpoints").mkdir(parents=True)
    (second / ".posttrain").mkdir()
    (second / ".posttrain/checkpoints").symlink_to(root / ".posttrain/checkpoints")
    first = start(root, repository)
    wait_until((root / "started").exists)
    code, errors = finish(second)
    assert (code, f"process {first.pid} is still running this stage" in errors) == (75, True)
    (root / "go").touch()
    ended(first)
    (second / "go").touch()
    assert finish(second)[0] == 0


def test_other_code_data_or_configuration_has_another_checkpoint_folder(root: Path, repository: Path):
    finish(root)
    first = (root / "started").read_text()
    finish(root)
    assert (root / "started").read_text() == first
    (root / "what").write_text("other data")
    finish(root)
    assert (root / "started").read_text() != first


def test_a_file_that_a_knob_names_and_no_dep_covers_is_refused(root: Path, repository: Path):
    """Otherwise an edited score would run nothing again."""
    (root / "brave.py").write_text("def brave(trajectory, task): ...")
    params = (root / "params.yaml").read_text().replace("extra: []", "extra: [{name: 'brave:brave', weight: 0.001}]")
    (root / "params.yaml").write_text(params)
    (root / "dvc.yaml").write_text((root / "dvc.yaml").read_text().replace("[seed]", "[seed, reward]"))
    code, errors = finish(root)
    assert (code, "brave:brave leads to brave.py" in errors) == (78, True)
