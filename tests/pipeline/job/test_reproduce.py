"""One stage through DVC: run, taken from the run cache, failed with the stage's own exit code;
interrupted at a checkpoint."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from posttrain.pipeline.job.shared_disk import run
from posttrain.runtime.exits import meaning_of
from tests.dvc_trees import init_dvc
from tests.key_examples import SPELLINGS, planted, planted_in

DVC_YAML = """
stages:
  good:
    cmd: echo a line on its way && cp zero one
    deps: [zero]  # DVC keeps no run of a stage that reads nothing
    outs: [one]
  bad_knobs:
    cmd: echo a reason >&2; exit 78
    outs: [never]
  killed:
    cmd: mktemp -d; kill -9 $$
    outs: [gone]
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


LOUD = """
import os, subprocess, sys
content = open("planted.txt", "rb").read()
if len(sys.argv) == 1:  # both streams, and a process below
    for start in range(0, len(content), 1000):
        os.write(1, content[start:start + 1000])
    os.write(2, b"\\n" + content + b"\\n")
    subprocess.run([sys.executable, sys.argv[0], "below"], check=True)
    open("heard", "w").close()
else:
    print(content.decode(), file=sys.stderr)
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    init_dvc(tmp_path, has_git=False)
    (tmp_path / "dvc.yaml").write_text(DVC_YAML)
    (tmp_path / "zero").write_text("1\n")
    (tmp_path / "slow.py").write_text(SLOW)
    return tmp_path


def test_a_stage_runs_and_is_not_run_again(root):
    lines, more = [], []
    assert run("good", root, lines.append) == 0
    assert "a line on its way" in lines
    assert run("good", root, more.append) == 0
    assert "a line on its way" not in more


def test_an_output_comes_back_from_the_run_cache(root):
    lines = []
    run("good", root, str)
    (root / "one").unlink()
    (root / "dvc.lock").unlink()
    assert run("good", root, lines.append) == 0
    assert "a line on its way" not in lines
    assert (root / "one").read_text() == "1\n"


def test_keys_that_any_process_of_a_stage_prints_are_in_no_line_of_its_job(root):
    (root / "planted.txt").write_text(planted("a stage", len(SPELLINGS)))
    (root / "dvc.yaml").write_text("stages:\n  loud:\n    cmd: python loud.py\n    deps: [zero]\n    outs: [heard]\n")
    (root / "loud.py").write_text(LOUD)
    assert planted_in((root / "planted.txt").read_text())
    lines = []
    assert run("loud", root, lines.append) == 0
    assert sum("[key removed]" in line for line in lines) > 3 * 1000
    assert planted_in("\n".join(lines)) == set()


def test_a_failed_stage_keeps_its_own_exit_code_and_its_last_words(root):
    lines = []
    assert run("bad_knobs", root, lines.append) == 78
    assert "a reason" in lines


def test_a_stage_that_was_killed_ends_as_a_shell_has_it(root):
    assert run("killed", root, str) == 137


def test_a_killed_stage_leaves_no_temporary_files(root, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(root))
    lines, before = [], set(root.iterdir())
    run("killed", root, lines.append)
    assert any("posttrain-stage-" in line for line in lines), "it went there"
    assert {path for path in root.iterdir() if path.name != ".dvcignore"} <= before | {root / "dvc.lock"}


def test_a_stage_that_dvc_does_not_know_is_named(root):
    lines = []
    assert run("nobody", root, lines.append) == 1
    assert any("nobody" in line for line in lines)


def test_python_in_a_command_is_the_one_that_runs_the_flow(root, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    lines = []
    run("which", root, lines.append)
    assert sys.prefix in lines


@pytest.mark.parametrize(
    ("exit_code", "said"),
    [
        (65, "bad data"),
        (70, "stopped by a health alarm"),
        (75, "interrupted"),
        (1, "an error in the stage itself"),
        (137, "killed by SIGKILL, often for lack of memory"),
        (-9, "killed by SIGKILL, often for lack of memory"),
        (143, "killed by SIGTERM"),
        (255, "an error in the stage itself"),
    ],
)
def test_an_exit_code_is_told_with_its_meaning(exit_code, said):
    assert said in meaning_of(exit_code)


def test_a_stage_that_is_interrupted_ends_by_itself_and_its_code_comes_through(root, repository):
    command = [sys.executable, "-m", "posttrain.pipeline.job.shared_disk", "slow"]
    environment = {**os.environ, "PYTHONPATH": str(repository)}
    job = subprocess.Popen(command, cwd=root, env=environment, stdout=subprocess.PIPE, text=True)
    assert any(line == "started\n" for line in job.stdout)
    job.terminate()
    assert ("checkpoint written" in job.communicate(timeout=60)[0], job.returncode) == (True, 75)
