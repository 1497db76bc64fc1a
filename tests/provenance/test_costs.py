"""What stages say of their cost, and what an estimate takes from it."""

from pathlib import Path

import pytest

from posttrain.provenance.costs import (
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


def test_what_is_no_line_of_a_cost_is_left_out_and_an_older_one_is_read(root):
    lines = [
        '{"stage": "a", "seconds": 3.0, "peak_mib": 4}',
        '{"stage": "b", "sec',
        "[1]",
        "7",
        "",
        '{"stage": "c", "seconds": NaN, "peak_mib": 1}',
    ]
    lines += ['{"stage": "d", "seconds": "3", "peak_mib": 1}', '{"stage": "e", "seconds": -3, "peak_mib": 1}']
    (root / COSTS).write_text("\n".join(lines))
    assert [(one.stage, one.whole_s) for one in read_costs(root)] == [("a", 3.0)]
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
