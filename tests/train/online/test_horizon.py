"""The order that goes on to the next level once the highest so far succeeds."""

from collections import Counter

import pytest

from posttrain.runtime.exits import ConfigurationError
from posttrain.train.sampling.horizon import level_of
from posttrain.types import Task
from tests.train.online.samplers import TASKS, observe, sampler


def horizon(tasks=TASKS):
    return sampler("horizon", tasks, promote_at=0.7)


def levels(tasks):
    return {level_of(task, "difficulty") for task in tasks}


def test_levels_come_as_the_ones_before_them_succeed():
    found = horizon()
    assert levels(found.choose(10)) == {1}
    observe(found, TASKS[:2], 0.5)  # 0.5 is less than 0.7
    assert levels(found.choose(10)) == {1}
    observe(found, TASKS[:2], 0.8)  # (1/2 · 2 · 0.5 + 2 · 0.8) / (1/2 · 2 + 2) = 0.7
    assert levels(found.choose(20)) == {1, 2}
    observe(found, TASKS[:2], 1.0)  # no longer at the horizon
    assert levels(found.choose(20)) == {1, 2}
    observe(found, TASKS[10:12], 0.7)
    assert levels(found.choose(30)) == {1, 2, 3}
    observe(found, TASKS[20:], 1.0)
    assert found.choose(1)
    assert found.horizon == 3


def test_tasks_within_the_horizon_are_as_likely_as_each_other():
    found = horizon()
    found.choose(1)
    observe(found, TASKS[:10], 1.0)
    drawn = Counter(task.task_id for _ in range(1000) for task in found.choose(4))
    assert set(drawn) == {task.task_id for task in TASKS[:20]}
    assert max(abs(num - 200) for num in drawn.values()) < 4 * (1000 * 0.2 * 0.8) ** 0.5


def test_where_too_few_are_within_the_horizon_the_next_levels_make_up_for_it():
    drawn = horizon().choose(14)
    assert [level_of(task, "difficulty") for task in drawn] == [1] * 10 + [2] * 4


def test_levels_stand_in_the_order_of_numbers():
    tasks = [Task(name, "rl", (), (), {"difficulty": name}) for name in ("10", "9", "-1.5")]
    assert [task.task_id for task in horizon(tasks).choose(3)] == ["-1.5", "9", "10"]


@pytest.mark.parametrize("labels", [{"kind": "a"}, {}, {"difficulty": "hard"}, {"difficulty": "nan"}])
def test_a_label_that_orders_no_tasks_is_refused(labels):
    with pytest.raises(ConfigurationError, match=r"order\.label is 'difficulty', which is .* for task t"):
        sampler("horizon", [*TASKS, Task("t", "rl", (), (), labels)])
