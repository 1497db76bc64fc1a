"""Costs of stages, of the attempts before them, and what an estimate takes from them."""

import json
import math
from dataclasses import asdict
from pathlib import Path

import pytest

from posttrain.provenance import costs as module
from posttrain.provenance.costs import (
    ATTEMPTS,
    COSTS,
    STARTED,
    Attempts,
    Cost,
    append_cost,
    last_runs,
    measured_cost,
    num_gpus_here,
    read_costs,
)


def cost(stage: str, whole_s: float, *, is_resumed: bool = False) -> Cost:
    return Cost(stage, whole_s - 1, whole_s, 100.0, is_resumed, 0.0)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / COSTS).parent.mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def measured(root: Path, stage: str, seconds: float, peak_mib: float, *, is_resumed: bool) -> Cost:
    attempts = Attempts(root)
    return measured_cost(
        stage, seconds=seconds, peak_mib=peak_mib, is_resumed=is_resumed, num_threads=2, attempts=attempts
    )


def test_a_cost_is_read_as_it_was_recorded_with_the_time_since_the_launcher_began(root, monkeypatch):
    monkeypatch.setenv(STARTED, "0")  # of a clock that began long before
    append_cost(measured(root, "train_sft", 2.0, 10.4, is_resumed=True))
    monkeypatch.delenv(STARTED)
    append_cost(measured(root, "report", 0.5, 5.0, is_resumed=False))
    launched, by_hand = read_costs(root)
    assert (launched.stage, launched.seconds, launched.peak_mib, launched.is_resumed) == ("train_sft", 2.0, 10.0, True)
    assert (launched.whole_s > 2.0, by_hand.whole_s) == (True, 0.5)
    assert launched.at == pytest.approx(by_hand.at, abs=5)


def test_the_last_run_from_nothing_counts_and_of_one_that_only_ever_went_on_the_longest():
    costs = [
        cost("a", 100),
        cost("a", 30),
        cost("a", 2, is_resumed=True),
        cost("b", 7, is_resumed=True),
        cost("b", 5, is_resumed=True),
    ]
    assert {stage: cost.whole_s for stage, cost in last_runs(costs).items()} == {"a": 30, "b": 7}


def test_a_line_that_is_no_cost_is_left_out(root):
    good = asdict(cost("a", 3.0))
    lines = [json.dumps(good), json.dumps(good)[:20], "[1]", "7", "", json.dumps(good | {"seconds": math.nan})]
    lines += [json.dumps(good | {"seconds": wrong}) for wrong in ("3", -3)]
    (root / COSTS).write_text("\n".join(lines))
    assert read_costs(root) == [cost("a", 3.0)]
    assert read_costs(root / "nowhere") == []


@pytest.mark.parametrize(
    ("environment", "num_gpus"),
    [
        ({"POSTTRAIN_NUM_GPUS": "4", "CUDA_VISIBLE_DEVICES": "0"}, 4),
        ({"CUDA_VISIBLE_DEVICES": "0,3"}, 2),
        ({"CUDA_VISIBLE_DEVICES": ""}, 0),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, 0),
        ({"POSTTRAIN_NUM_GPUS": "0", "CUDA_VISIBLE_DEVICES": "1"}, 0),
    ],
)
def test_what_a_pool_reserved_counts_and_else_what_cuda_may_see(environment, num_gpus):
    assert num_gpus_here(environment) == num_gpus


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def test_one_that_was_never_stopped_has_no_others(tmp_path, clock):
    attempts = Attempts(tmp_path)
    for step in range(1, 9):
        attempts.update(step, 8)
    assert attempts.end() == (0.0, ())
    assert not (tmp_path / ATTEMPTS).exists()


def test_killed_ones_count_as_far_as_they_told_and_say_where_they_were_gone_on_with(tmp_path, clock):
    first = Attempts(tmp_path)
    for step in range(1, 5):
        clock[0] += 30
        first.update(step, 100)
    clock[0] += 30  # and is killed: of this nobody knows
    second = Attempts(tmp_path)
    clock[0] += 5
    second.update(4, 100)  # the checkpoint was of step 3
    third = Attempts(tmp_path)
    third.update(51, 100)
    assert third.end() == (120.0 + 5.0, (3, 50))
    assert Attempts(tmp_path).end() == (0.0, ()), "the next result is another one's"


def test_one_that_ended_before_its_first_step_is_no_mark_on_a_curve(tmp_path, clock):
    Attempts(tmp_path)
    second = Attempts(tmp_path)
    second.update(1, 10)
    assert second.end() == (0.0, ())


def test_several_loops_have_no_common_steps(tmp_path, clock):
    Attempts(tmp_path).update(3, 480)
    second = Attempts(tmp_path)
    second.update(7, 1920)
    assert second.end()[1] == ()


def test_a_worker_writes_for_the_runner_that_began(tmp_path, clock):
    Attempts(tmp_path).update(1, 10)
    runner = Attempts(tmp_path)
    Attempts(tmp_path, is_new=False).update(6, 10)
    assert runner.end() == (0.0, (5,))


@pytest.mark.parametrize(
    "text", ["", "{", "[1]\n", '{"seconds": "x", "first": null}\n', '{"seconds": 1, "first": [1]}\n']
)
def test_what_is_damaged_is_passed_over(tmp_path, clock, text):
    (tmp_path / ATTEMPTS).write_text(text)
    assert Attempts(tmp_path).end() == (0.0, ())
