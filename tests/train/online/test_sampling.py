"""Sampling orders: numbers worked out on paper, how often each task comes up under a fixed
seed, and a state that is gone on with."""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import yaml
from pydantic import ValidationError
from tiny import word_task

from posttrain.train.online.params import OnlineParams
from posttrain.train.online.trainer_state import TrainerState, TrainingInputs
from posttrain.train.sampling.orders import SpreadSampling, TaskHistory, Uniform
from posttrain.types import Outcome, ScoredEpisode, StopReason, Trajectory
from tests.train.online.samplers import ORDERS, SHARES, TASKS, play, sampler, sampling


@pytest.mark.parametrize("order", ORDERS)
def test_a_draw_goes_on_from_a_state_that_was_json_as_if_there_had_been_no_stop(order):
    whole, again = sampler(order), sampler(order)
    play(whole, 9, 7, np.random.default_rng(0))
    state = json.loads(json.dumps(whole.state(), sort_keys=True))
    again.restore(state)
    assert play(whole, 9, 7, np.random.default_rng(1)) == play(again, 9, 7, np.random.default_rng(1))
    assert json.dumps(whole.state(), sort_keys=True) == json.dumps(again.state(), sort_keys=True)


@pytest.mark.parametrize("order", ORDERS)
def test_another_seed_draws_other_tasks_and_the_same_one_the_same(order):
    one, same, other = (play(sampler(order, seed=seed), 5, 7, np.random.default_rng(0)) for seed in (3, 3, 4))
    assert one == same
    assert one != other


@pytest.mark.parametrize("order", [order for order in ORDERS if order != "uniform"])
@pytest.mark.parametrize("count", [1, 7, 29, 30])
def test_a_draw_has_as_many_tasks_as_were_asked_for_and_none_twice(order, count):
    drawn = play(sampler(order), 40, count, np.random.default_rng(0))
    assert {len(some) for some in drawn} == {len(set(some)) for some in drawn} == {count}


@pytest.mark.parametrize("order", ORDERS)
def test_no_task_is_out_of_reach(order):
    """By half of the groups the horizon goes on; a pool that has a share is drawn from, and a task
    that was skipped a hundred times is played with a chance of one in a hundred."""
    drawn = play(sampler(order), 400, 7, np.random.default_rng(0))
    late = Counter(task_id for some in drawn[200:] for task_id in some)
    assert set(late) == {task.task_id for task in TASKS}


def test_tasks_whose_groups_were_equal_are_chosen_less_often():
    tasks = [word_task(x, y) for x in range(4, 14) for y in range(4, 14)]
    found = sampler("spread", tasks)
    for place, task in enumerate(tasks):
        found.observe(task.task_id, has_spread=place % 2 == 0, success=0.5)
    drawn = [found.choose(10) for _ in range(30)]
    share = np.mean([tasks.index(task) % 2 == 0 for some in drawn for task in some])
    assert 0.85 < share < 1.0  # 1 / (1 + 0.05) where tasks are drawn one at a time


def test_what_is_expected_of_a_task_is_told_by_those_with_its_labels():
    tasks = [replace(word_task(4, y), labels={"kind": "a" if y < 8 else "b"}) for y in range(4, 12)]
    params = SpreadSampling.model_construct(labels=["kind"], floor=0.05, decay=1.0)  # all groups count alike
    found = params.make(tasks, seed=3)
    assert [found.share(task) for task in tasks] == [1.0] * 8
    for task, has_spread in zip(tasks[:3], (True, False, False), strict=True):
        found.observe(task.task_id, has_spread=has_spread, success=0.0)
    found.observe(tasks[0].task_id, has_spread=False, success=0.0)
    assert found.share(tasks[3]) == pytest.approx(1 / 4), "never played: as the four groups of its kind"
    assert found.share(tasks[0]) == pytest.approx((1 + 1 / 4) / 3), "two groups of its own, and its kind as one more"
    assert found.share(tasks[7]) == 1.0


@pytest.mark.parametrize(
    ("order", "changes", "said"),
    [
        ("pools", {"low": 0.75}, "low is 0.75 and high 0.75: .* put low below high"),
        ("pools", {"shares": SHARES | {"easy": 0.3}}, "sum to 1.05, not 1"),
        ("pools", {"shares": {"hard": 0.5, "middle": 0.0, "easy": 0.5}}, "middle\n.*greater than 0"),
    ],
)
def test_knobs_out_of_range_are_refused(order, changes, said):
    with pytest.raises(ValidationError, match=said):
        sampling(order, **changes)


def ended(task, reward):
    """An episode that earned 1 or 0; None: one that is lost."""
    if reward is None:
        return ScoredEpisode(Trajectory(task.task_id, (), StopReason.ENGINE_LOST))
    outcome = Outcome(bool(reward), bool(reward))
    return ScoredEpisode(Trajectory(task.task_id, (), StopReason.DONE, reward=float(reward), outcome=outcome))


class Recorder(Uniform):
    """Records what it observes."""

    def __init__(self, tasks):
        super().__init__(tasks, seed=0)
        self.observed = {}

    def observe(self, task_id, *, has_spread, success):
        self.observed[task_id] = (has_spread, success)


def test_a_sampler_observes_the_members_that_are_left_and_of_no_group_of_one():
    ends = {"t0": [1, 0, 0, 0], "t1": [None, 0, 0, None], "t2": [None, None, 1, None], "t3": [None] * 4}
    ends["t4"] = [1, None, 1, 1]
    knobs = yaml.safe_load(OnlineParams.example) | {"tasks_per_step": 5, "group_size": 4}
    found = Recorder(TASKS[:5])
    params = OnlineParams.model_validate({"type": "online", **knobs})
    state = TrainerState(params, TrainingInputs(TASKS[:5], None), seed=0)
    state.sampler = found
    for task in TASKS[:5]:
        state.grouped(task, [ended(task, reward) for reward in ends[task.task_id]])
    assert found.observed == {"t0": (True, 0.25), "t1": (False, 0.0), "t4": (False, 1.0)}


def test_a_running_mean_forgets():
    history = TaskHistory(0.5)
    history.add("t", np.array([1.0, 1.0]))
    history.add("t", np.array([0.0, 0.0]))
    assert (history.mean("t"), history.count("t")) == (1 / 3, 3.0)
    assert history.mean("u") is None
    other = TaskHistory(0.5)
    other.restore(history.state())
    assert other == history
