"""Running mean of what each task earned, an old episode counting less with every further step."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from posttrain.train.advantages.groups import FloatArray


@dataclass(slots=True)
class TaskHistory:
    """`decay`: how much of an episode's weight is left after another step of its task. `sums`: by
    task, the weighted sum of its rewards, and the sum of the weights."""

    decay: float
    sums: dict[str, tuple[float, float]] = field(default_factory=dict)

    def mean(self, task_id: str) -> float | None:
        """None where the task was never seen."""
        total, weight = self.sums.get(task_id, (0.0, 0.0))
        return total / weight if weight else None

    def count(self, task_id: str) -> float:
        """Number of episodes that the mean counts as."""
        return self.sums.get(task_id, (0.0, 0.0))[1]

    def add(self, task_id: str, rewards_G: FloatArray) -> None:
        """Add a group. At a decay of 1/2, rewards 1, 1 and then 0, 0 have a mean of (1/2 + 1/2) /
        (2/2 + 2) = 1/3."""
        total, weight = self.sums.get(task_id, (0.0, 0.0))
        self.sums[task_id] = (
            self.decay * total + math.fsum(rewards_G.tolist()),
            self.decay * weight + float(np.size(rewards_G)),
        )

    def state(self) -> Mapping[str, object]:
        """For a checkpoint, in JSON's types."""
        return {"sums": {task: list(sums) for task, sums in self.sums.items()}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Load what `state` returned."""
        self.sums = {task: (total, weight) for task, (total, weight) in state["sums"].items()}
