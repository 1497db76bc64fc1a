"""Sampling orders: which tasks a step plays. The base of all, what tasks came to
earlier, shuffled passes over all tasks (`uniform`), and more of those whose groups lately differed
in reward (`spread`)."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from posttrain.runtime.knobs import Decay, Section
from posttrain.train.advantages.groups import FloatArray
from posttrain.train.sample_order import repeated_passes
from posttrain.types import Task


@dataclass(slots=True)
class TaskHistory:
    """Running mean of what each task earned. `decay`: share of an episode's weight left after
    another step of its task. `sums`: of weighted rewards and of weights."""

    decay: float
    sums: dict[str, tuple[float, float]] = field(default_factory=dict)

    def mean(self, task_id: str) -> float | None:
        """None where the task was never seen."""
        total, weight = self.sums.get(task_id, (0.0, 0.0))
        return total / weight if weight else None

    def count(self, task_id: str) -> float:
        return self.sums.get(task_id, (0.0, 0.0))[1]

    def add(self, task_id: str, rewards_G: FloatArray) -> None:
        """At a decay of 1/2, rewards 1, 1 and then 0, 0 have a mean of (1/2 + 1/2) / (2/2 + 2) =
        1/3."""
        total, weight = self.sums.get(task_id, (0.0, 0.0))
        self.sums[task_id] = (
            # fsum rounds once: the mean must not depend on the order of the members
            self.decay * total + math.fsum(rewards_G.tolist()),
            self.decay * weight + float(np.size(rewards_G)),
        )

    def state(self) -> Mapping[str, object]:
        return {"sums": {task: list(sums) for task, sums in self.sums.items()}}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.sums = {task: (total, weight) for task, (total, weight) in state["sums"].items()}


class Sampler:
    """Chooses the tasks to play next, by seed, number of draws, and groups observed. Its state
    is in the checkpoint."""

    def __init__(self, tasks: Sequence[Task], *, seed: int) -> None:
        self._tasks, self._seed, self._num_draws = tasks, seed, 0

    def choose(self, count: int) -> list[Task]:
        raise NotImplementedError

    def observe(self, task_id: str, *, has_spread: bool, success: float) -> None:
        """Observe a chosen task's group: True where its rewards differed, and the share that
        succeeded. Not called where fewer than two members were left."""

    def state(self) -> Mapping[str, object]:
        return {"num_draws": self._num_draws}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._num_draws = state["num_draws"]

    def _next_rng(self) -> np.random.Generator:
        """A generator of this draw's own: a resumed training draws what an undisturbed one does."""
        self._num_draws += 1
        return np.random.default_rng([self._seed, self._num_draws - 1])

    def _shuffled(self, rng: np.random.Generator) -> list[Task]:
        return [self._tasks[index] for index in rng.permutation(len(self._tasks))]


class UniformSampling(Section):
    """Every task as often as every other."""

    type: Literal["uniform"]

    def make(self, tasks: Sequence[Task], *, seed: int) -> "Uniform":
        return Uniform(tasks, seed=seed)


class Uniform(Sampler):
    def __init__(self, tasks: Sequence[Task], *, seed: int) -> None:
        super().__init__(tasks, seed=seed)
        self._num_chosen = 0

    def choose(self, count: int) -> list[Task]:
        end = self._num_chosen + count
        order = repeated_passes(np.arange(len(self._tasks)), end, np.random.default_rng(self._seed))
        chosen = [self._tasks[index] for index in order[self._num_chosen :]]
        self._num_chosen = end
        return chosen

    def state(self) -> Mapping[str, object]:
        return {"num_chosen": self._num_chosen}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._num_chosen = state["num_chosen"]


class SpreadSampling(Section):
    """Tasks whose groups differed in reward before likelier than others, whose odds are `floor`;
    a group counts `decay` as much after each further one of its task. What those with the same
    `labels` came to counts as one group more."""

    example: ClassVar[str] = "{labels: [kind, difficulty], floor: 0.1, decay: 0.5}"
    type: Literal["spread"]
    labels: list[str]
    floor: Annotated[float, Field(gt=0, le=1)]
    decay: Decay

    def make(self, tasks: Sequence[Task], *, seed: int) -> "Spread":
        return Spread(self, tasks, seed=seed)


class Spread(Sampler):
    """Chooses a task with odds of `floor` + (1 - `floor`) · s, s being the expected share of its
    groups that differ: one of equal rewards teaches nothing, and another is likely to follow.
    The objective is that of the tasks in these proportions."""

    def __init__(self, params: SpreadSampling, tasks: Sequence[Task], *, seed: int) -> None:
        super().__init__(tasks, seed=seed)
        self._floor = params.floor
        self._alike = {task.task_id: _values(task, params.labels) for task in tasks}
        self._seen, self._seen_alike = TaskHistory(params.decay), TaskHistory(params.decay)

    def choose(self, count: int) -> list[Task]:
        rng = self._next_rng()
        odds = [self._floor + (1 - self._floor) * self.share(task) for task in self._tasks]
        # Gumbel's trick: the largest keys are a draw without replacement in proportion to the odds
        keys = np.log(odds) + rng.gumbel(size=len(self._tasks))
        return [self._tasks[index] for index in np.argsort(-keys, kind="stable")[:count]]

    def observe(self, task_id: str, *, has_spread: bool, success: float) -> None:  # noqa: ARG002 the base's
        self._seen.add(task_id, np.array([float(has_spread)]))
        self._seen_alike.add(self._alike[task_id], np.array([float(has_spread)]))

    def state(self) -> Mapping[str, object]:
        return {**super().state(), "seen": self._seen.state(), "alike": self._seen_alike.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self._seen.restore(state["seen"])
        self._seen_alike.restore(state["alike"])

    def share(self, task: Task) -> float:
        """Expected share of the task's groups that differ, 1 where none like it was played. Two
        groups of its own of which one differed, at a decay of 1, and a third of those alike: (1
        + 1/3) / 3."""
        alike = self._seen_alike.mean(self._alike[task.task_id])
        own, count = self._seen.mean(task.task_id) or 0.0, self._seen.count(task.task_id)
        return (own * count + (1.0 if alike is None else alike)) / (count + 1)


def _values(task: Task, labels: Sequence[str]) -> str:
    """A key that is the same for tasks alike; each task's own where no label is named."""
    return json.dumps([task.labels.get(label, "") for label in labels]) if labels else task.task_id
