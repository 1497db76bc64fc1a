"""Forecasts of how long stages take, and the lines of how far a stage and the run around it are."""

import os
import pty
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from posttrain.pipeline.graph import read_graph
from posttrain.provenance.costs import COSTS, Cost, append_cost
from posttrain.provenance.environment import stage_environment
from posttrain.provenance.eta import (
    VARIABLE,
    Progress,
    duration,
    read_forecast,
    read_run_forecast,
    run_environment,
    run_progress,
)
from posttrain.provenance.run_records import record_run
from posttrain.runtime.state import state_dir

RUN = {"make": 10.0, "train": 30.0, "report": 60.0}
SHOWS = """
import time
from posttrain.provenance.eta import Progress
progress = Progress()
for done in range(1, 25):
    progress.show("train", done, 24, "a note that is longer than the terminal is wide")
    time.sleep(0.05)
progress.end()
print("over", flush=True)
"""


def test_a_share_of_the_run_is_by_the_time_that_stages_take():
    # 10 s and half of 30 s of 100 s are done; 15 s of this stage are left, and 60 s of the next
    assert run_progress(RUN, "train", 0.5, 15.0) == "stage 2 of 3, 25 % of the run, 75 s left"
    assert run_progress(RUN, "train", 0.4, None) == "stage 2 of 3, 22 % of the run, 78 s left"
    assert run_progress(RUN, "another", 0.5, 15.0) == run_progress({}, "train", 0.5, 15.0) == ""
    assert run_progress({"make": None, "train": 3.0}, "train", 0.5, 15.0) == "stage 2 of 2"


@pytest.mark.parametrize("text", ["{", None])
def test_a_stage_whose_run_has_no_file_here_knows_of_no_run(tmp_path: Path, text: str | None):
    environment = run_environment({"make": 10.0}, tmp_path)
    Path(environment[VARIABLE]).unlink()
    if text is not None:
        Path(environment[VARIABLE]).write_text(text)
    assert read_run_forecast(environment) == read_run_forecast({}) == {}


def test_a_run_of_any_number_of_stages_reaches_them(tmp_path: Path):
    seconds = {f"stage_{number}@with_an_item": 10.5 for number in range(40)}
    environment = stage_environment(tmp_path, run_environment(seconds, tmp_path))
    assert read_run_forecast(environment) == seconds


def test_a_setting_that_is_no_path_stays_as_it_is(tmp_path: Path):
    given = {"POSTTRAIN_TEXT": "a" * 300, "POSTTRAIN_ZERO": "a\0b"}
    assert stage_environment(tmp_path, given).items() >= given.items()


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.4, "0 s"),
        (99.4, "99 s"),
        (100, "2 min"),
        (12.4 * 60, "12 min"),
        (59.6 * 60, "1 h 00 min"),
        (7500, "2 h 05 min"),
    ],
)
def test_durations_are_rounded_to_what_a_reader_needs(seconds, said):
    assert duration(seconds) == said


def test_a_log_has_a_line_every_five_seconds_and_at_the_end_of_each_loop(capsys, monkeypatch):
    now_s = [0.0]
    monkeypatch.setattr("posttrain.provenance.eta.time.monotonic", lambda: now_s[0])
    progress = Progress(RUN)
    for done in range(1, 13):
        progress.show("train", done, 12, "loss 0.5")
        now_s[0] += 1.0
    progress.show("train", 12, 12, "loss 0.5")  # a trainer's last step and its end
    for done in (1, 2):
        now_s[0] += 2.0
        progress.show("train", done, 2)
    assert capsys.readouterr().err.splitlines() == [
        "[train] 1/12  0.0/s  …  stage 2 of 3, 12 % of the run, 88 s left  loss 0.5",
        "[train] 6/12  1.0/s  6 s left  stage 2 of 3, 25 % of the run, 66 s left  loss 0.5",
        "[train] 11/12  1.0/s  1 s left  stage 2 of 3, 38 % of the run, 61 s left  loss 0.5",
        "[train] 12/12  1.0/s  0 s left  stage 2 of 3, 40 % of the run, 60 s left  loss 0.5",
        "[train] 2/2  0.5/s  0 s left  stage 2 of 3, 40 % of the run, 60 s left",
    ]


def test_a_terminal_has_one_line_that_is_written_over_within_its_width_and_is_empty_in_the_end(repository):
    ours, terminal = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(repository), "TERM": "xterm"}
    started_s = time.monotonic()
    process = subprocess.Popen([sys.executable, "-c", SHOWS], env=environment, stdout=terminal, stderr=terminal)
    os.close(terminal)
    said = b""
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:  # nobody has the other end any more
            break
        said += part
    os.close(ours)
    assert process.wait() == 0
    text = said.decode()
    assert text.count("\n") == 1, "that of the last word"
    assert text.endswith("\r\x1b[2Kover\r\n")
    shown = [re.sub(r"\x1b\[2K", "", line) for line in text.split("\r")[:-2]]
    assert all(line.startswith("[train] ") and len(line) < 80 for line in shown)
    assert 2 <= len(shown) <= 2 + (time.monotonic() - started_s) / 0.5, "a line every half second, and the end"


MADE = Cost("train_sft", 300.0, 400.0, 900.0, False, 1764000000.0)
KNOBS = {
    "seed": 1,
    "train_sft": {"max_steps": 100, "batch_size": 16, "lr": 0.1},
    "train_policy": {"algorithm": {"type": "online", "max_steps": 10, "tasks_per_step": 4, "group_size": 8}},
    "world": {"num_test_tasks": 50},
    "evaluate": {"num_samples": 2},
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A tree whose committed runs took 400 s each."""
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(KNOBS))
    params = {
        "train_sft": {"seed": 1, "train_sft": KNOBS["train_sft"]},
        "train_policy": {"train_policy": KNOBS["train_policy"]},
        "evaluate@sft": {"world": KNOBS["world"], "evaluate.num_samples": 2},
    }
    entries = {
        name: {"cmd": "x", "params": {"params.yaml": knobs}, "outs": [{"path": name, "md5": 32 * "a"}]}
        for name, knobs in params.items()
    }
    (tmp_path / "dvc.lock").write_text(yaml.safe_dump({"schema": "2.0", "stages": entries}))
    state_dir(tmp_path)
    for name, entry in entries.items():
        record_run(tmp_path, name, entry, replace(MADE, stage=name))
    (tmp_path / COSTS).unlink()
    return tmp_path


def edit(root: Path, key: str, value: object) -> None:
    content = yaml.safe_load((root / "params.yaml").read_text())
    *path, last = key.split(".")
    section = content
    for part in path:
        section = section[part]
    section[last] = value
    (root / "params.yaml").write_text(yaml.safe_dump(content))


@pytest.mark.parametrize(
    ("key", "value", "stage", "seconds"),
    [
        ("train_sft.lr", 0.2, "train_sft", 400.0),
        ("train_sft.max_steps", 250, "train_sft", 1000.0),
        ("train_policy.algorithm.group_size", 4, "train_policy", 200.0),
        ("train_policy.algorithm", {"type": "dpo", "max_steps": 20}, "train_policy", 800.0),
        ("world.num_test_tasks", 100, "evaluate@sft", 800.0),
        ("evaluate.num_samples", "many", "evaluate@sft", 400.0),
    ],
)
def test_a_committed_run_counts_in_proportion_to_the_work_of_the_present_knobs(root, key, value, stage, seconds):
    edit(root, key, value)
    assert read_forecast(root)[stage] == pytest.approx(seconds)


def test_a_run_of_this_tree_counts_as_it_was_where_its_knobs_are_not_known_any_more(root):
    edit(root, "train_sft.max_steps", 200)
    append_cost(replace(MADE, whole_s=90.0, key="another"), root / COSTS)
    assert read_forecast(root)["train_sft"] == 90.0


def test_a_tree_without_runs_or_with_a_damaged_record_has_no_forecast(root):
    (root / "reports/runs.jsonl").write_text("{\n")
    assert read_forecast(root) == {}


def test_the_committed_runs_of_this_repository_cover_every_stage(repository):
    assert set(read_forecast(repository)) >= {node.name for node in read_graph(repository)}
