"""The order that skips tasks after equal groups (GRESO)."""

import numpy as np
import pytest

from posttrain.train.sampling.greso import kind_of, skip_probability
from posttrain.types import Task
from tests.train.online.samplers import TASKS, observe, sampler


@pytest.mark.parametrize(("run", "skipped"), [(0, 0.0), (1, 0.5), (2, 0.75), (3, 0.875), (7, 0.99), (1000, 0.99)])
def test_a_task_is_skipped_with_one_less_half_to_the_power_of_its_equal_groups(run, skipped):
    assert skip_probability(0.5, run) == pytest.approx(skipped, abs=1e-15)


@pytest.mark.parametrize(("num_right", "kind"), [(8, "easy"), (7, "mixed"), (4, "mixed"), (1, "mixed"), (0, "hard")])
def test_a_group_of_eight_is_easy_with_all_right_and_hard_with_none(num_right, kind):
    assert kind_of(has_spread=num_right not in (0, 8), success=num_right / 8) == kind


def test_a_run_of_equal_groups_ends_with_one_that_differs_or_is_equal_the_other_way():
    found = greso()
    told = []
    for success in (1.0, 1.0, 0.5, 1.0, 0.0, 0.0):
        observe(found, TASKS[:1], success)
        told.append(found.skipped_share("t0"))
    assert told == [0.5, 0.75, 0.0, 0.5, 0.5, 0.75]
    assert found.skipped_share("t1") == 0.0


def greso(tasks=TASKS):
    return sampler("greso", tasks, easy_share=0.25, hard_share=0.5)


def test_the_first_pass_plays_every_task_once_and_in_another_order_than_the_next():
    found = greso()
    passes = [[task.task_id for _ in range(5) for task in found.choose(6)] for _ in range(2)]
    assert {*passes[0]} == {*passes[1]} == {task.task_id for task in TASKS}
    assert passes[0] != passes[1]


def test_the_chance_falls_by_a_hundredth_while_the_share_has_reached_its_target_and_else_rises():
    """Four groups: one is easy, which is the target of 0.25, and one hard, less than 0.5."""
    found = greso()
    for _ in range(5):
        found.choose(6)
    told = []
    for _ in range(60):
        observe(found, TASKS[:1], 1.0)
        observe(found, TASKS[1:2], 0.0)
        observe(found, TASKS[2:4], 0.5)
        found.choose(6)
        told.append((found.bases["easy"], found.bases["hard"]))
    assert told[0] == pytest.approx((0.49, 0.51))
    assert told[9] == pytest.approx((0.40, 0.60))
    assert told[-1] == (0.05, 0.95)


def test_the_chance_stays_in_the_first_pass_and_where_nothing_was_heard():
    found = greso()
    for _ in range(5):
        found.choose(6)
        observe(found, TASKS, 0.5)
        assert found.bases == {"easy": 0.5, "hard": 0.5}
    found.choose(6)
    moved = dict(found.bases)
    assert moved == pytest.approx({"easy": 0.51, "hard": 0.51})
    found.choose(6)
    assert found.bases == moved, "the groups of an earlier draw are not heard again"


def test_tasks_are_skipped_as_often_as_their_probability_says():
    """Half of the tasks had three easy groups: of eight visits they are played at one, the others
    at all, so that 1 in 9 of those played is one of them."""
    tasks = [Task(f"t{place}", "rl", (), ()) for place in range(1000)]
    found = greso(tasks)
    for _ in range(3):
        observe(found, tasks[:500], 1.0)
    drawn = [task.task_id for _ in range(50) for task in found.choose(100)]
    assert np.mean([int(task_id[1:]) < 500 for task_id in drawn]) == pytest.approx(1 / 9, abs=0.015)


def test_where_all_are_skipped_a_draw_takes_them_in_their_order_and_ends():
    found = greso()
    order = [task.task_id for task in greso().choose(30)]
    for _ in range(10):
        observe(found, TASKS, 0.0)
    drawn = [task.task_id for task in found.choose(30)]
    assert sorted(drawn) == sorted(order)
    skipped = [task_id for place, task_id in enumerate(drawn) if place > 5]  # 0.3 of thirty are kept, and come first
    assert skipped == [task_id for task_id in order if task_id in skipped]
