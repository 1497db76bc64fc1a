"""Plays a step: which tasks, under which seeds, what joins their groups, and which of the groups
are learnt from."""

import math
from collections.abc import Sequence

import numpy as np

from posttrain.models import distributed
from posttrain.rollout.episode_sampler import Stream, episode_seeds
from posttrain.rollout.generator import RolloutBatch, RolloutSchedule
from posttrain.train.online.episode_groups import EpisodeGroup
from posttrain.train.online.params import OnlineParams
from posttrain.train.online.trainer_state import TrainerState
from posttrain.types import Task


class RolloutCollector:
    """Plays one step after another; ahead where that was asked for."""

    def __init__(self, rollouts: RolloutSchedule, memory: TrainerState, params: OnlineParams, *, seed: int) -> None:
        self._rollouts, self._memory, self._params, self._seed = rollouts, memory, params, seed
        self._ahead: tuple[list[Task], RolloutBatch] | None = None

    def play(self, step: int, *, is_ahead: bool) -> tuple[list[EpisodeGroup], int]:
        """The groups of a step, and by how many optimizer steps their weights are older. More tasks
        are played while groups that differ are missing and refills are left. `is_ahead`: the next
        step's are begun, too."""
        groups: list[EpisodeGroup] = []
        missing, staleness = self._params.tasks_per_step, 0
        for refill in range(1 + self._params.sampling.max_refills):
            tasks, batch = self._ahead or self._batch(step, refill, missing)
            self._ahead = self._batch(step + 1, 0, self._params.tasks_per_step) if is_ahead else None
            played, staleness = self._rollouts.take(batch, following=self._ahead and self._ahead[1])
            size = self._params.group_size
            more = [
                self._memory.joining.join(task, played[place * size : (place + 1) * size])
                for place, task in enumerate(tasks)
            ]
            for one in more:
                self._memory.observe(one)
                missing -= one.has_spread
            groups += more
            if missing <= 0:
                break
        return groups, staleness

    def _batch(self, step: int, refill: int, missing: int) -> tuple[list[Task], RolloutBatch]:
        size = self._params.group_size
        shared = distributed.count() // math.gcd(
            distributed.count(), size
        )  # the fewest tasks that can be shared equally
        tasks = self._memory.sampler.choose(-(-missing // shared) * shared)
        seeds = episode_seeds(Stream.ONLINE, self._seed, step, refill, count=len(tasks) * size)
        hints = [share for task in tasks for share in self._memory.joining.hints(task, size)]
        return tasks, RolloutBatch([task for task in tasks for _ in range(size)], seeds, hints)


def learnt_groups(groups: Sequence[EpisodeGroup], params: OnlineParams) -> list[bool]:
    """Of each group whether it is trained: with refills the first that differ, as many as a step
    has; all of them otherwise."""
    if not params.sampling.max_refills:
        return [True] * len(groups)
    num_before = np.cumsum([0, *(one.has_spread for one in groups)])
    return [one.has_spread and bool(num_before[place] < params.tasks_per_step) for place, one in enumerate(groups)]
