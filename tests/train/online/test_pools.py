"""The order that takes shares of a step from hard, middle and easy tasks."""

from collections import Counter

import numpy as np
import pytest

from posttrain.train.sampling.pools import rounded_shares
from tests.train.online.samplers import TASKS, observe, sampler


@pytest.mark.parametrize(
    ("shares", "count", "offset", "found"),
    [
        ([0.4, 0.4, 0.2], 2, 0.1, [0, 1, 1]),
        ([0.4, 0.4, 0.2], 2, 0.5, [1, 1, 0]),
        ([0.5, 0.25, 0.25], 8, 0.999, [4, 2, 2]),
        ([1.0, 0.0, 0.0], 3, 0.999, [3, 0, 0]),
        ([0.1, 0.2, 0.7], 0, 0.5, [0, 0, 0]),
    ],
)
def test_shares_are_rounded_to_whole_tasks_that_sum_to_all(shares, count, offset, found):
    assert rounded_shares(shares, count, offset=offset) == found


def test_rounded_shares_are_exact_on_average():
    offsets = (np.arange(1000) + 0.5) / 1000
    found = np.mean([rounded_shares([0.4, 0.35, 0.25], 3, offset=offset) for offset in offsets], axis=0)
    assert found == pytest.approx([1.2, 1.05, 0.75], abs=1e-9)


@pytest.mark.parametrize(
    ("successes", "pool"),
    [
        ([], "middle"),
        ([0.25], "hard"),
        ([0.26], "middle"),
        ([0.75], "easy"),
        ([1.0, 0.0], "middle"),  # (1/2 · 1 + 0) / (1/2 + 1) = 1/3
        ([1.0, 0.0, 0.0], "hard"),  # 1/4 / (1/4 + 1/2 + 1) = 1/7
    ],
)
def test_a_task_is_in_the_pool_of_its_late_success(successes, pool):
    found = sampler("pools")
    for success in successes:
        found.observe("t0", has_spread=False, success=success)
    assert found.pool_of("t0") == pool


def test_steps_of_one_task_have_their_shares_of_the_pools_between_them():
    found = sampler("pools")
    for tasks, success in ((TASKS[:10], 0.0), (TASKS[10:20], 0.5), (TASKS[20:], 1.0)):
        observe(found, tasks, success)
    drawn = Counter(TASKS.index(found.choose(1)[0]) // 10 for _ in range(1000))
    assert [drawn[pool] / 1000 for pool in range(3)] == pytest.approx([0.25, 0.5, 0.25], abs=0.06)  # four deviations


def test_what_a_pool_lacks_comes_from_the_middle_and_then_from_any():
    found = sampler("pools")
    observe(found, TASKS[:1], 0.0)
    observe(found, TASKS[9:], 1.0)
    of_eight = [task.task_id for task in found.choose(8)]  # two hard ones are wanted, four of the middle, two easy ones
    assert "t0" in of_eight
    assert Counter(found.pool_of(task_id) for task_id in of_eight) == {"hard": 1, "middle": 5, "easy": 2}
    of_twenty = [task.task_id for task in found.choose(20)]  # five, ten, five; the middle has eight
    assert Counter(found.pool_of(task_id) for task_id in of_twenty) == {"hard": 1, "middle": 8, "easy": 11}
