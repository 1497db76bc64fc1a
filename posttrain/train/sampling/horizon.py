"""A curriculum over a label of the tasks that is a number, their difficulty or length: those beyond
the horizon are not played until those at it succeed.

The label is the world's, known before anything is played, so that the order needs no oracle and is
the same for every policy. The horizon begins at the lowest level that tasks have; before a draw it
goes on to the next one where the success share of the groups at it has reached `promote_at`. It
never goes back. All tasks within are as likely as each other, those of lower levels, too: what was
learnt is not forgotten.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from posttrain.runtime.exits import ConfigurationError
from posttrain.train.advantages.history import TaskHistory
from posttrain.types import Task

_KNOB = "train_policy.algorithm.sampling.order.label"


class Horizon:
    """A pure function of the seed, of how often was chosen before, and of what was seen. `horizon`
    is the highest level that is played now."""

    def __init__(self, tasks: Sequence[Task], *, seed: int, label: str, promote_at: float, decay: float) -> None:
        """Raises ConfigurationError for a task without the label, or with one that is no number."""
        self._tasks, self._seed, self._promote_at = tasks, seed, promote_at
        self._level_of = {task.task_id: level_of(task, label) for task in tasks}
        self._levels = sorted(set(self._level_of.values()))
        self.horizon = self._levels[0]
        self._seen, self._num_draws = TaskHistory(decay), 0
        self._heard: list[float] = []  # successes of groups at the horizon, since the last draw

    def choose(self, count: int) -> list[Task]:
        """`count` different tasks at random; where too few are within the horizon, the others are
        of the levels next to it."""
        self._look_up()
        rng = np.random.default_rng([self._seed, self._num_draws])
        self._num_draws += 1
        shuffled = [self._tasks[index] for index in rng.permutation(len(self._tasks))]
        return sorted(shuffled, key=lambda task: max(self._level_of[task.task_id], self.horizon))[:count]

    def observe(self, task_id: str, *, has_spread: bool, success: float) -> None:  # noqa: ARG002 the protocol's
        """A group of the task."""
        if self._level_of[task_id] == self.horizon:
            self._heard.append(success)

    def state(self) -> Mapping[str, object]:
        """As JSON has it, for a checkpoint."""
        return {
            "num_draws": self._num_draws,
            "horizon": self.horizon,
            "seen": self._seen.state(),
            "heard": list(self._heard),
        }

    def restore(self, state: Mapping[str, object]) -> None:
        """The reverse."""
        num_draws, horizon, seen, heard = state["num_draws"], state["horizon"], state["seen"], state["heard"]
        assert isinstance(num_draws, int)
        assert isinstance(horizon, float)
        assert isinstance(seen, Mapping)
        assert isinstance(heard, list)
        self._num_draws, self.horizon = num_draws, horizon
        self._heard = list(heard)
        self._seen.restore(seen)

    def _look_up(self) -> None:
        """On to the next level where the groups of the draws so far at this one succeed; a draw's
        count `decay` as much as the next one's."""
        if self._heard:
            self._seen.add(str(self.horizon), np.array(self._heard))
            self._heard.clear()
        share = self._seen.mean(str(self.horizon))
        further = [level for level in self._levels if level > self.horizon]
        if share is not None and share >= self._promote_at and further:
            self.horizon = further[0]


def level_of(task: Task, label: str) -> float:
    """The label as a number: levels 2 and 10 stand in this order."""
    if label not in task.labels:
        had = f"has {', '.join(task.labels)}" if task.labels else "has no labels"
        raise ConfigurationError(
            f"{_KNOB} is {label!r}, and task {task.task_id} {had}: without it nobody knows which tasks come first; "
            "name a label that all tasks of the rl split have"
        )
    try:
        level = float(task.labels[label])
    except ValueError:
        level = math.nan
    if not math.isfinite(level):
        raise ConfigurationError(
            f"{_KNOB} is {label!r}, which is {task.labels[label]!r} for task {task.task_id}: levels are ordered as "
            "numbers; name a label whose values are numbers, such as difficulty"
        )
    return level
