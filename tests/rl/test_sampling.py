"""Which tasks a step plays: numbers worked out on paper, how often each task comes up under a fixed
seed, and a state that is gone on with."""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import yaml
from pydantic import ValidationError
from tiny import word_task

from posttrain.algorithms.rollouts import RolloutSchedule, ScoredEpisode
from posttrain.exits import ConfigurationError
from posttrain.rl.memory import Memory
from posttrain.rl.params import OnlineParams
from posttrain.rl.play import Player
from posttrain.rl.sampling.choice import make_sampler
from posttrain.rl.sampling.greso import Greso, kind_of, skip_probability
from posttrain.rl.sampling.horizon import Horizon, level_of
from posttrain.rl.sampling.params import SamplingParams
from posttrain.rl.sampling.pools import Pools, rounded_shares
from posttrain.rl.sampling.spread import Spread
from posttrain.rl.sampling.uniform import Uniform
from posttrain.rl.setup import Setup
from posttrain.types import Outcome, StopReason, Task, Trajectory

ORDERS = {
    "uniform": "{type: uniform}",
    "spread": "{type: spread, labels: [], floor: 0.05, decay: 0.5}",
    "greso": "{type: greso, easy_share: 0.0833, hard_share: 0.1667, start: 0.5}",
    "pools": "{type: pools, low: 0.25, high: 0.75, shares: {hard: 0.25, middle: 0.5, easy: 0.25}, decay: 0.5}",
    "horizon": "{type: horizon, label: difficulty, promote_at: 0.4, decay: 0.5}",
}
TASKS = [Task(f"t{place}", "rl", (), (), {"difficulty": str(1 + place // 10)}) for place in range(30)]
SHARES = {"hard": 0.25, "middle": 0.5, "easy": 0.25}


def sampling(order, **changes):
    return SamplingParams.model_validate({"order": yaml.safe_load(ORDERS[order]) | changes, "max_refills": 0})


def sampler(order, tasks=TASKS, seed=3, **changes):
    return make_sampler(sampling(order, **changes), tasks, seed=seed)


def observe(found, tasks, success):
    for task in tasks:
        found.observe(task.task_id, has_spread=0 < success < 1, success=success)


def play(found, num_steps, count, rng):
    """Tasks t0, t3, t6… are always solved, t1, t4… never, the others by half."""
    drawn = []
    for _ in range(num_steps):
        drawn.append([task.task_id for task in found.choose(count)])
        for task_id in drawn[-1]:
            share = [1.0, 0.0, rng.binomial(8, 0.5) / 8][int(task_id[1:]) % 3]
            found.observe(task_id, has_spread=0 < share < 1, success=share)
    return drawn


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


def test_tasks_are_chosen_in_shuffled_passes_and_gone_on_with_from_a_state():
    tasks = [word_task(x, 9) for x in range(4, 9)]
    whole, first, second = (Uniform(tasks, seed=3) for _ in range(3))
    expected = whole.choose(12)
    found = first.choose(7)
    second.restore(first.state())
    assert found + second.choose(5) == expected
    assert {task.task_id for task in expected[:5]} == {task.task_id for task in tasks}


def test_tasks_whose_groups_were_equal_are_chosen_less_often():
    tasks = [word_task(x, y) for x in range(4, 14) for y in range(4, 14)]
    found = Spread(tasks, seed=3, labels=[], floor=0.05, decay=0.5)
    for place, task in enumerate(tasks):
        found.observe(task.task_id, has_spread=place % 2 == 0, success=0.5)
    drawn = [found.choose(10) for _ in range(30)]
    share = np.mean([tasks.index(task) % 2 == 0 for some in drawn for task in some])
    assert 0.85 < share < 1.0  # 1 / (1 + 0.05) where tasks are drawn one at a time


def test_what_is_expected_of_a_task_is_told_by_those_with_its_labels():
    tasks = [replace(word_task(4, y), labels={"kind": "a" if y < 8 else "b"}) for y in range(4, 12)]
    found = Spread(tasks, seed=3, labels=["kind"], floor=0.05, decay=1.0)
    assert [found.share(task) for task in tasks] == [1.0] * 8
    for task, has_spread in zip(tasks[:3], (True, False, False), strict=True):
        found.observe(task.task_id, has_spread=has_spread, success=0.0)
    found.observe(tasks[0].task_id, has_spread=False, success=0.0)
    assert found.share(tasks[3]) == pytest.approx(1 / 4), "never played: as the four groups of its kind"
    assert found.share(tasks[0]) == pytest.approx((1 + 1 / 4) / 3), "two groups of its own, and its kind as one more"
    assert found.share(tasks[7]) == 1.0


@pytest.mark.parametrize(("run", "skipped"), [(0, 0.0), (1, 0.5), (2, 0.75), (3, 0.875), (7, 0.99), (1000, 0.99)])
def test_a_task_is_skipped_with_one_less_half_to_the_power_of_its_equal_groups(run, skipped):
    assert skip_probability(0.5, run) == pytest.approx(skipped, abs=1e-15)


@pytest.mark.parametrize(("num_right", "kind"), [(8, "easy"), (7, "mixed"), (4, "mixed"), (1, "mixed"), (0, "hard")])
def test_a_group_of_eight_is_easy_with_all_right_and_hard_with_none(num_right, kind):
    assert kind_of(has_spread=num_right not in (0, 8), success=num_right / 8) == kind


@pytest.mark.parametrize(
    ("success", "kind"), [(1.0, "mixed"), (0.98, "easy"), (0.97, "mixed"), (0.11, "hard"), (0.12, "mixed")]
)
def test_what_earned_differently_is_neither_easy_nor_hard(success, kind):
    assert kind_of(has_spread=success == 1.0, success=success) == kind


def test_a_run_of_equal_groups_ends_with_one_that_differs_or_is_equal_the_other_way():
    found = greso()
    told = []
    for success in (1.0, 1.0, 0.5, 1.0, 0.0, 0.0):
        observe(found, TASKS[:1], success)
        told.append(found.skipped_share("t0"))
    assert told == [0.5, 0.75, 0.0, 0.5, 0.5, 0.75]
    assert found.skipped_share("t1") == 0.0


def greso(tasks=TASKS, easy_share=0.25, hard_share=0.5):
    return Greso(tasks, seed=3, easy_share=easy_share, hard_share=hard_share, start=0.5)


def test_the_first_pass_plays_every_task_once_and_in_another_order_than_the_next():
    found = greso()
    passes = [[task.task_id for _ in range(5) for task in found.choose(6)] for _ in range(2)]
    assert {*passes[0]} == {*passes[1]} == {task.task_id for task in TASKS}
    assert passes[0] != passes[1]


def test_the_chance_falls_by_a_hundredth_while_the_share_has_reached_its_target_and_else_rises():
    """Of four groups one was easy, the target of 0.25, and one hard, less than 0.5."""
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


def pools(shares=SHARES, low=0.25, high=0.75):
    return Pools(TASKS, seed=3, bounds=(low, high), shares=shares, decay=0.5)


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
    found = pools()
    for success in successes:
        found.observe("t0", has_spread=False, success=success)
    assert found.pool_of("t0") == pool


def test_a_step_has_its_shares_of_the_three_pools():
    found = pools()
    for tasks, success in ((TASKS[:10], 0.0), (TASKS[10:20], 0.5), (TASKS[20:], 1.0)):
        observe(found, tasks, success)
    for _ in range(20):
        assert Counter(TASKS.index(task) // 10 for task in found.choose(8)) == {0: 2, 1: 4, 2: 2}


def test_steps_of_one_task_have_their_shares_of_the_pools_between_them():
    found = pools()
    for tasks, success in ((TASKS[:10], 0.0), (TASKS[10:20], 0.5), (TASKS[20:], 1.0)):
        observe(found, tasks, success)
    drawn = Counter(TASKS.index(found.choose(1)[0]) // 10 for _ in range(1000))
    assert [drawn[pool] / 1000 for pool in range(3)] == pytest.approx([0.25, 0.5, 0.25], abs=0.06)  # four deviations


def test_what_a_pool_lacks_comes_from_the_middle_and_then_from_any():
    found = pools()
    observe(found, TASKS[:1], 0.0)
    observe(found, TASKS[9:], 1.0)
    of_eight = [task.task_id for task in found.choose(8)]  # two hard ones are wanted, four of the middle, two easy ones
    assert "t0" in of_eight
    assert Counter(found.pool_of(task_id) for task_id in of_eight) == {"hard": 1, "middle": 5, "easy": 2}
    of_twenty = [task.task_id for task in found.choose(20)]  # five, ten, five; the middle has eight
    assert Counter(found.pool_of(task_id) for task_id in of_twenty) == {"hard": 1, "middle": 8, "easy": 11}


def horizon(tasks=TASKS, promote_at=0.7, decay=0.5):
    return Horizon(tasks, seed=3, label="difficulty", promote_at=promote_at, decay=decay)


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


def test_a_draw_goes_on_by_one_level_and_never_back():
    found = horizon()
    found.choose(1)
    observe(found, TASKS, 1.0)
    found.choose(1)
    assert found.horizon == 2
    observe(found, TASKS, 0.0)
    found.choose(1)
    assert found.horizon == 2


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


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (
            {"kind": "a", "language": "zh"},
            "order.label is 'difficulty', and task t has kind, language: .* name a label",
        ),
        ({}, "and task t has no labels"),
        ({"difficulty": "hard"}, "is 'hard' for task t: levels are ordered as numbers"),
        ({"difficulty": "nan"}, "is 'nan' for task t"),
    ],
)
def test_a_label_that_orders_no_tasks_is_refused(labels, said):
    with pytest.raises(ConfigurationError, match=said):
        sampler("horizon", [*TASKS, Task("t", "rl", (), (), labels)])


@pytest.mark.parametrize(
    ("order", "changes", "said"),
    [
        ("greso", {"start": 0.04}, "greater than or equal to 0.05"),
        ("greso", {"start": 0.96}, "less than or equal to 0.95"),
        ("greso", {"easy_share": 0.0}, "greater than 0"),
        ("greso", {"hard_share": 1.1}, "less than or equal to 1"),
        ("pools", {"low": 0.75}, "low is 0.75 and high 0.75: .* put low below high"),
        ("pools", {"shares": SHARES | {"easy": 0.3}}, "sum to 1.05, not 1"),
        ("pools", {"shares": {"hard": 0.5, "middle": 0.0, "easy": 0.5}}, "middle\n.*greater than 0"),
        ("pools", {"shares": {"hard": -0.5, "middle": 1.0, "easy": 0.5}}, "hard\n.*greater than or equal to 0"),
        ("pools", {"decay": 1.0}, "less than 1"),
        ("horizon", {"label": ""}, "at least 1 character"),
        ("horizon", {"promote_at": 0.0}, "greater than 0"),
        ("horizon", {"promote_at": 1.1}, "less than or equal to 1"),
    ],
)
def test_knobs_out_of_range_are_refused(order, changes, said):
    with pytest.raises(ValidationError, match=said):
        sampling(order, **changes)


class Script:
    """Plays each task's episodes as they are written down: 1 for a success, 0 for a failure, None
    for one that is lost."""

    is_elsewhere = False

    def __init__(self, ends):
        self.ends = {task_id: iter(some) for task_id, some in ends.items()}

    def refresh(self): ...

    def play(self, tasks, seeds):
        return [self.end(task.task_id, next(self.ends[task.task_id])) for task in tasks]

    def end(self, task_id, reward):
        if reward is None:
            return ScoredEpisode(Trajectory(task_id, (), StopReason.ENGINE_LOST))
        outcome = Outcome(bool(reward), bool(reward))
        return ScoredEpisode(Trajectory(task_id, (), StopReason.DONE, reward=float(reward), outcome=outcome))


class Heard(Uniform):
    """Writes down what it is told."""

    def __init__(self, tasks):
        super().__init__(tasks, seed=0)
        self.told = {}

    def observe(self, task_id, *, has_spread, success):
        self.told[task_id] = (has_spread, success)


def test_a_sampler_hears_of_the_members_that_are_left_and_of_no_group_of_one():
    ends = {"t0": [1, 0, 0, 0], "t1": [None, 0, 0, None], "t2": [None, None, 1, None], "t3": [None] * 4}
    ends["t4"] = [1, None, 1, 1]
    knobs = yaml.safe_load(OnlineParams.example) | {"tasks_per_step": 5, "group_size": 4}
    found, script = Heard(TASKS[:5]), Script(ends)
    params = OnlineParams.model_validate({"type": "online", **knobs})
    memory = Memory(params, Setup(TASKS[:5], script), seed=0)
    memory.sampler = found
    with RolloutSchedule(script) as rollouts:
        Player(rollouts, memory, params, seed=0).play(0, is_ahead=False)
    assert found.told == {"t0": (True, 0.25), "t1": (False, 0.0), "t4": (False, 1.0)}
