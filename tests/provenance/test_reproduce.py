"""One stage through DVC: cached, completed or failed with the stage's own exit code; interrupted at a checkpoint."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from posttrain.provenance.reproduce import Outcome, Reproducer

DVC_YAML = """
stages:
  good:
    cmd: echo a line on its way && cp zero one
    deps: [zero]  # DVC keeps no run of a stage that reads nothing
    outs: [one]
  bad_knobs:
    cmd: echo a reason >&2; exit 78
    outs: [never]
  which:
    cmd: python -c "import sys; print(sys.prefix)"
    outs: [none]
  slow:
    cmd: python slow.py
    outs: [late]
"""


SLOW = """
import signal, sys, time
def checkpoint(*_):
    time.sleep(1)
    print("checkpoint written")
    sys.exit(75)
signal.signal(signal.SIGTERM, checkpoint)
print("started")
time.sleep(600)
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    subprocess.run([sys.executable, "-m", "dvc", "init", "--no-scm", "--quiet"], cwd=tmp_path, check=True)
    (tmp_path / "dvc.yaml").write_text(DVC_YAML)
    (tmp_path / "zero").write_text("1\n")
    (tmp_path / "slow.py").write_text(SLOW)
    return tmp_path


def test_a_stage_that_ran_is_completed_and_one_with_nothing_to_do_is_cached(root):
    lines = []
    assert Reproducer(root).reproduce("good", lines.append).state == "completed"
    assert "a line on its way" in lines
    assert Reproducer(root).reproduce("good", lines.append).state == "cached"


def test_a_stage_whose_output_comes_back_from_the_run_cache_is_cached(root):
    reproducer = Reproducer(root)
    reproducer.reproduce("good", str)
    (root / "one").unlink()
    (root / "dvc.lock").unlink()
    assert reproducer.reproduce("good", str).state == "cached"
    assert (root / "one").read_text() == "1\n"


def test_a_failed_stage_keeps_its_own_exit_code_and_its_last_words(root):
    outcome = Reproducer(root).reproduce("bad_knobs", str)
    assert (outcome.state, outcome.exit_code) == ("failed", 78)
    assert "a reason" in outcome.tail
    assert outcome.reason == "exit code 78 (wrong configuration: running again without an edit cannot help)"


def test_a_stage_that_dvc_does_not_know_fails_without_an_exit_code(root):
    outcome = Reproducer(root).reproduce("nobody", str)
    assert (outcome.state, outcome.exit_code, outcome.reason) == ("failed", None, "dvc could not run or record the stage")
    assert any("nobody" in line for line in outcome.tail)


def test_python_in_a_command_is_the_one_that_runs_the_flow(root, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    lines = []
    Reproducer(root).reproduce("which", lines.append)
    assert sys.prefix in lines


@pytest.mark.parametrize(
    ("exit_code", "said"),
    [
        (65, "bad data"),
        (75, "interrupted"),
        (1, "an error in the stage itself"),
        (137, "killed by SIGKILL, often for lack of memory"),
        (-9, "killed by SIGKILL, often for lack of memory"),
        (143, "killed by SIGTERM"),
        (255, "an error in the stage itself"),
    ],
)
def test_an_exit_code_is_told_with_its_meaning(exit_code, said):
    assert said in Outcome("failed", 1.0, exit_code).reason


def test_a_stage_that_is_interrupted_ends_by_itself_and_its_code_comes_through(root):
    reproducer, started, outcomes = Reproducer(root), threading.Event(), []
    thread = threading.Thread(target=lambda: outcomes.append(reproducer.reproduce("slow", lambda line: line == "started" and started.set())))
    thread.start()
    assert started.wait(60)
    reproducer.interrupt()
    thread.join(60)
    assert (outcomes[0].state, outcomes[0].exit_code, "checkpoint written" in outcomes[0].tail) == ("failed", 75, True)
