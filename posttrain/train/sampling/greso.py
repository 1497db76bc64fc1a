"""GRESO sampling: shuffled passes that skip tasks whose last groups in a row were all solved or all
failed (arXiv 2506.02177).

A task is skipped with probability 1 - max(p^z, 0.01), z being how many of its last groups in a row
were easy (equal rewards, success at least 0.98) or hard (equal, at most 0.11). Easy and hard have a
p each; `start` at first, it falls by 0.01 where the share of such groups has reached its target,
else rises, within 0.05 and 0.95.

The released code (b277843) moves p once an optimizer step from the second epoch on, with targets of
0.25 / 3 and 0.25 · 2 / 3, and goes by the mean reward. Ours moves p at each draw from the second
pass on, by the groups observed since the one before; z goes by success, and a group that differs
ends it; a draw that every task came up in takes the first of those that it skipped.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from posttrain.runtime.knobs import Section
from posttrain.train.sampling.orders import Sampler
from posttrain.types import Task

Kind = Literal["easy", "hard", "mixed"]

EASY_FROM, HARD_TO = 0.98, 0.11
LEAST_KEPT = 0.01
MOVE, LEAST_BASE, MOST_BASE = 0.01, 0.05, 0.95
_ORDER, _SKIPS = 0, 1  # keeps the two streams of draws apart


class GresoSampling(Section):
    """Every task as often as every other, but skipped the likelier the more of its last groups in a
    row were equal and all solved (easy), or equal and all failed (hard): it is played with a chance
    of p to the power of their number (GRESO). p is `start` at first, and falls while the share of
    easy, or of hard, groups is at its target or above."""

    example: ClassVar[str] = "{easy_share: 0.0833, hard_share: 0.1667, start: 0.5}"
    type: Literal["greso"]
    easy_share: Annotated[float, Field(gt=0, le=1)]
    hard_share: Annotated[float, Field(gt=0, le=1)]
    start: Annotated[float, Field(ge=0.05, le=0.95)]

    def make(self, tasks: Sequence[Task], *, seed: int) -> "Greso":
        return Greso(self, tasks, seed=seed)


class Greso(Sampler):
    """`bases`: the current p of easy and of hard tasks."""

    def __init__(self, params: GresoSampling, tasks: Sequence[Task], *, seed: int) -> None:
        super().__init__(tasks, seed=seed)
        self._targets: dict[Kind, float] = {"easy": params.easy_share, "hard": params.hard_share}
        self.bases: dict[Kind, float] = {"easy": params.start, "hard": params.start}
        self._runs: dict[str, tuple[Kind, int]] = {}  # of each task, the kind of its last groups and z
        self._observed: Counter[Kind] = Counter()  # since the last draw
        self._num_passed = 0
        self._pass = (-1, np.empty(0, dtype=np.int64))  # the pass that the next place lies in, and its order

    def choose(self, count: int) -> list[Task]:
        """`count` different tasks in the order of the passes, then skipped ones where too few
        were not. A task that comes up twice in a draw, where two passes meet, counts once."""
        if self._num_passed >= len(self._tasks):
            self._move()
        self._observed.clear()
        rng = np.random.default_rng([self._seed, self._num_draws, _SKIPS])
        self._num_draws += 1
        kept: list[Task] = []
        skipped: list[Task] = []
        came: set[int] = set()
        while len(kept) < count and len(came) < len(self._tasks):
            index = self._next()
            if index not in came:
                came.add(index)
                task = self._tasks[index]
                (skipped if rng.random() < self.skipped_share(task.task_id) else kept).append(task)
        return [*kept, *skipped][:count]

    def observe(self, task_id: str, *, has_spread: bool, success: float) -> None:
        kind = kind_of(has_spread=has_spread, success=success)
        before, run = self._runs.get(task_id, (kind, 0))
        self._runs[task_id] = (kind, run + 1 if before == kind else 1)
        self._observed[kind] += 1

    def skipped_share(self, task_id: str) -> float:
        """Probability that the task is skipped when it comes up."""
        kind, run = self._runs.get(task_id, ("mixed", 0))
        return 0.0 if kind == "mixed" else skip_probability(self.bases[kind], run)

    def state(self) -> Mapping[str, object]:
        return {
            **super().state(),
            "num_passed": self._num_passed,
            "bases": dict(self.bases),
            "runs": {task: list(run) for task, run in self._runs.items()},
            "observed": dict(self._observed),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self._num_passed = state["num_passed"]
        self.bases, self._observed = dict(state["bases"]), Counter(state["observed"])
        self._runs = {task: (kind, run) for task, (kind, run) in state["runs"].items()}

    def _next(self) -> int:
        num_passes, place = divmod(self._num_passed, len(self._tasks))
        self._num_passed += 1
        if self._pass[0] != num_passes:
            rng = np.random.default_rng([self._seed, num_passes, _ORDER])
            self._pass = (num_passes, rng.permutation(len(self._tasks)))
        return int(self._pass[1][place])

    def _move(self) -> None:
        num_observed = self._observed.total()
        if not num_observed:
            return
        for kind, target in self._targets.items():
            move = -MOVE if self._observed[kind] / num_observed >= target else MOVE
            self.bases[kind] = min(max(self.bases[kind] + move, LEAST_BASE), MOST_BASE)


def kind_of(*, has_spread: bool, success: float) -> Kind:
    """Equal rewards of eight with eight successes are easy; with none, hard; one, 0.125, is more
    than 0.11."""
    if has_spread or HARD_TO < success < EASY_FROM:
        return "mixed"
    return "easy" if success >= EASY_FROM else "hard"


def skip_probability(base: float, run: int) -> float:
    """1 - max(p^z, 0.01): at p = 0.5, z of 0, 1, 2, 3 gives 0, 0.5, 0.75, 0.875, 7 or more 0.99."""
    return 1 - max(base**run, LEAST_KEPT)
