"""The line that says how far a stage and the run around it are."""

import json
import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from posttrain.pipeline.graph import StageNode
from posttrain.pipeline.run_status import RunStatus
from posttrain.stage.costs import COSTS, Cost
from posttrain.stage.environment import stage_environment
from posttrain.stage.progress import Progress
from posttrain.stage.whole_run import VARIABLE, WholeRun, duration, read_whole_run, run_environment

RUN = WholeRun({"make": 10.0, "train": 30.0, "report": 60.0})
SHOWS = """
import time
from posttrain.stage.progress import Progress
progress = Progress()
for done in range(1, 25):
    progress.show("train", done, 24, "a note that is longer than the terminal is wide")
    time.sleep(0.05)
progress.end()
print("over", flush=True)
"""


def test_a_share_of_the_run_is_by_the_time_that_stages_take():
    # 10 s and half of 30 s of 100 s are done; 15 s of this stage are left, and 60 s of the next
    assert RUN.words("train", 0.5, 15.0) == "stage 2 of 3, 25 % of the run, 75 s left"
    # itself it does not know: half of 30 s, and all at twice the time: 2 * (15 + 60)
    assert WholeRun(RUN.seconds, pace=2.0).words("train", 0.5, None) == "stage 2 of 3, 25 % of the run, 2 min left"
    assert RUN.words("another", 0.5, 15.0) == WholeRun({}).words("train", 0.5, 15.0) == ""
    assert WholeRun({"make": None, "train": 3.0}).words("train", 0.5, 15.0) == "stage 2 of 2"


def test_the_pace_is_that_of_the_stages_that_have_ended_in_this_run(tmp_path: Path):
    environment = run_environment({"make": 10.0, "tr/ain": 30.0, "report": None}, tmp_path)
    now = time.time()
    ended = [Cost("make", 1, 999.0, 1, False, now - 3600), Cost("make", 1, 20.0, 1, False, now + 1)]
    ended += [
        Cost("tr/ain", 1, 1.0, 1, True, now + 2),
        Cost("report", 1, 5.0, 1, False, now + 3),
        Cost("by hand", 1, 5.0, 1, False, now + 3),
    ]
    (tmp_path / COSTS).write_text(
        "".join(json.dumps({name: getattr(cost, name) for name in Cost.__slots__}) + "\n" for cost in ended)
    )
    run = read_whole_run(environment, tmp_path)
    assert (dict(run.seconds), run.pace) == ({"make": 10.0, "tr/ain": 30.0, "report": None}, 2.0)
    assert read_whole_run({}, tmp_path) == WholeRun({})
    Path(environment[VARIABLE]).write_text("{")
    assert read_whole_run(environment, tmp_path) == WholeRun({})
    Path(environment[VARIABLE]).unlink()
    assert read_whole_run(environment, tmp_path) == WholeRun({})


def test_a_run_of_any_number_of_stages_reaches_them(tmp_path: Path):
    seconds = {f"stage_{number}@with_an_item": 10.5 for number in range(40)}
    environment = stage_environment(tmp_path, run_environment(seconds, tmp_path))
    assert read_whole_run(environment, tmp_path).seconds == seconds


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
    monkeypatch.setattr("posttrain.stage.progress.time.monotonic", lambda: now_s[0])
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


def test_a_flow_reads_the_lines_of_a_log(capsys):
    node = StageNode("train", "python", "", (), (), (), ())
    status = RunStatus([node, StageNode("report", "python", "", (), (), (), ("train",))])
    Progress(RUN).show("train", 3, 4)
    for line in capsys.readouterr().err.splitlines():
        status.heard("train", line)
    assert status.percent() == 37.5


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


def test_a_terminal_that_cannot_go_back_gets_lines(repository):
    ours, terminal = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(repository), "TERM": "dumb"}
    subprocess.run(
        [sys.executable, "-c", SHOWS], env=environment, stdout=subprocess.DEVNULL, stderr=terminal, check=True
    )
    text = os.read(ours, 4096).decode()
    os.close(ours), os.close(terminal)
    assert "\x1b" not in text
    assert [line.split("  ")[0] for line in text.splitlines()] == ["[train] 1/24", "[train] 24/24"]
