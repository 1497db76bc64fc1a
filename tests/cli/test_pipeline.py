"""`posttrain plan` and `posttrain run`, as a person sees them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.toy_tree import environment, make_tree
from posttrain.cli.pipeline import Times, plan_text
from posttrain.pipeline.plan import PlannedStage
from posttrain.provenance.lockfile import lock_entries
from tests.console import posttrain

pytestmark = pytest.mark.xdist_group("plan")

CHECK = PlannedStage("check", "runs", ("params.yaml",), is_constant=True)
TRAIN = PlannedStage("train", "runs", ("a", "b", "c", "d", "e"))
KEPT = PlannedStage("kept", "cached", ("data/kept is deleted",))
JUDGE = PlannedStage("judge@one", "maybe", (), ("train",))
OTHER = PlannedStage("judge@two", "maybe", ("seed 1 → 2",), ("train", "judge@one"))
DONE = PlannedStage("done", "current")


def test_every_stage_that_is_not_current_has_a_line_with_its_reason_and_its_time():
    # DVC's share is 1 s of each
    times = Times({"check": 0.5, "train": 598.5, "judge@one": 58.5})
    assert plan_text([CHECK, TRAIN, KEPT, JUDGE, OTHER, DONE], times).splitlines() == [
        "check      runs          2 s  params.yaml; its output stays the same",
        "train      runs       10 min  a, b, c, d and 1 more",
        "kept       cached        1 s  data/kept is deleted",
        "judge@one  maybe        60 s  if train makes something else",
        "judge@two  maybe           ?  seed 1 → 2; from the run cache but if train, judge@one make something else",
        "up to date: done",
        "5 of 6 stages (over 11 min): 2 run (10 min), 1 come from the run cache (1 s), 2 may run (over 60 s)",
    ]


def test_dvcs_look_at_the_tree_is_counted_once_and_without_a_run_nobody_knows():
    assert "1 of 1 stage (62 s): 1 " in plan_text([JUDGE], Times({"judge@one": 58.5}, look_s=2.0))
    assert plan_text([JUDGE, DONE], Times({})).splitlines()[-1] == "1 of 2 stages: 1 may run"
    assert plan_text([DONE], Times({})) == "nothing to run: 1 stage up to date"


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    return make_tree(tmp_path_factory.mktemp("plan") / "tree")


@pytest.fixture
def root(tree, tmp_path, monkeypatch):
    root = Path(shutil.copytree(tree, tmp_path / "tree"))
    for name in set(os.environ) - set(environment()):
        monkeypatch.delenv(name)
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(root)
    return root


def test_what_was_planned_is_run_and_told_without_hints_and_the_stages_know_the_run(root):
    planned = posttrain("plan", "refine")
    assert [line.split()[:2] for line in planned.stdout.splitlines()[:2]] == [["make", "runs"], ["refine", "runs"]]
    shows = '    run.progress(1, 2)\n    Path("data/refined")'
    (root / "stages/refine.py").write_text(
        (root / "stages/refine.py").read_text().replace('    Path("data/refined")', shows)
    )
    ran = run_console(root, "run", "refine")
    assert (ran.returncode, list(lock_entries(root))) == (0, ["make", "refine"]), ran.stdout
    assert "Running stage 'make':\n" in ran.stdout
    assert "[refine] 1/2  0.0/s  …  stage 2 of 2\n" in ran.stdout, "the first run knows no times"
    assert not [hint for hint in ("git add", "autostage", "dvc push", "> python", "lock file") if hint in ran.stdout]
    (root / "data/source").write_text("source 1\n")
    again = run_console(root, "run", "refine")
    assert "[refine] 1/2  0.0/s  …  stage 2 of 2, " in again.stdout
    assert " % of the run, " in again.stdout
    assert "nothing to run: 2 stages up to date" in posttrain("plan", "refine").stdout


def test_wrong_knobs_and_targets_are_refused_before_anything_runs(root):
    params = (root / "params.yaml").read_text()
    (root / "params.yaml").write_text(params.replace("max_turns:", "max_turnz:"))
    for command in ("plan", "run"):
        refused = posttrain(command)
        assert (refused.exit_code, "Did you mean 'max_turns'?" in refused.stderr) == (78, True)
    (root / "params.yaml").write_text(params)
    assert posttrain("plan", "refin").exit_code == 78
    assert not (root / "dvc.lock").exists()


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("raise DataError('rotten')", 65),
        pytest.param("sys.exit(7)", 7, marks=pytest.mark.needs_provenance),
        pytest.param("os.kill(os.getpid(), 9)", 137, marks=pytest.mark.needs_provenance),
    ],
)
def test_a_run_ends_as_the_stage_that_failed(root, end, code):
    fails = f"import os, sys\nfrom posttrain.runtime.exits import DataError\n{(root / 'stages/make.py').read_text()}"
    (root / "stages/make.py").write_text(fails.replace("def make(run):\n", f"def make(run):\n    {end}\n"))
    ended = run_console(root, "run")
    assert ended.returncode == code, ended.stdout
    assert "failed to reproduce 'make'" in ended.stdout
    assert "Traceback" not in ended.stdout


def run_console(root, *arguments):
    """In a process of its own: DVC prints where it was first imported."""
    command = [sys.executable, "-m", "posttrain.cli.main", *arguments]
    return subprocess.run(
        command, cwd=root, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
