"""`posttrain demo` with tiny knobs: every stage runs, and no file of the tree changes."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.arms import SMALL, environment_of

pytestmark = [pytest.mark.smoke, pytest.mark.needs_provenance]


def test_the_demo_shows_table_verdict_and_page_and_changes_no_file(make_copy: Callable[..., Path]):
    root = make_copy()
    # of so few pairs some have to be held out
    knobs = {**SMALL, "sample_preferences.num_tasks": 16, "train_reward_model.holdout_frac": 0.5}
    settings = [part for key, value in knobs.items() for part in ("--set", f"{key}={json.dumps(value)}")]
    command = [sys.executable, "-m", "posttrain.cli.main", "demo", *settings]
    ended = subprocess.run(command, cwd=root, env=environment_of(root), capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-4000:]
    assert "\ntrain_policy: online from multi-turn tool episodes" in ended.stderr
    assert "policy less sft, strict success: " in ended.stdout
    assert "points: the choice of tasks may explain that" in ended.stdout
    assert "<html" in (root / ".posttrain/demo/reports/index.html").read_text()
    assert not (root / "dvc.lock").exists()
    changed = subprocess.run(["git", "status", "--porcelain"], cwd=root, capture_output=True, text=True, check=True)
    assert changed.stdout == ""


def test_a_stage_that_refuses_a_knob_ends_the_demo_with_its_code(make_copy: Callable[..., Path]):
    root = make_copy()
    command = [sys.executable, "-m", "posttrain.cli.main", "demo", "--set", "evaluate.by=[nothing]"]
    ended = subprocess.run(command, cwd=root, env=environment_of(root), capture_output=True, text=True, check=False)
    assert ended.returncode == 78
    assert "evaluate.by names nothing" in ended.stderr
