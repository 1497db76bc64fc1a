"""Shared by the tests of samplers: tasks of three levels, an order of each kind, and plays of
them."""

import yaml

from posttrain.train.online.params import SamplingParams
from posttrain.types import Task

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
    return sampling(order, **changes).order.make(tasks, seed=seed)


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
