"""What each task earned in earlier steps: a running mean that forgets, and how many episodes it
still speaks for."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from posttrain.train.advantages.groups import FloatArray


@dataclass(slots=True)
class TaskHistory:
    """`decay` is what of an old episode's weight is left after another step of its task. `sums`:
    by task, the weighted sum of its rewards and of the weights."""

    decay: float
    sums: dict[str, tuple[float, float]] = field(default_factory=dict)

    def mean(self, task_id: str) -> float | None:
        """None where nothing is known."""
        total, weight = self.sums.get(task_id, (0.0, 0.0))
        return total / weight if weight else None

    def count(self, task_id: str) -> float:
        """As how many episodes its mean counts."""
        return self.sums.get(task_id, (0.0, 0.0))[1]

    def add(self, task_id: str, rewards_G: FloatArray) -> None:
        """Of a step in which the task was played. At a decay of 1/2, rewards 1, 1 and then 0, 0
        give a mean of (1/2 + 1/2) / (2/2 + 2) = 1/3."""
        total, weight = self.sums.get(task_id, (0.0, 0.0))
        self.sums[task_id] = (
            self.decay * total + math.fsum(rewards_G.tolist()),
            self.decay * weight + float(np.size(rewards_G)),
        )

    def state(self) -> Mapping[str, object]:
        """As JSON has it, for a checkpoint."""
        return {"sums": {task: list(sums) for task, sums in self.sums.items()}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """The reverse; the decay is the knob's."""
        self.sums = {task: (total, weight) for task, (total, weight) in state["sums"].items()}
