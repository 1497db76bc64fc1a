"""Collects a step's rollouts: chooses tasks and seeds, has the episodes played, and groups them
with what replay adds."""

import math
from collections.abc import Sequence

import numpy as np

from posttrain.models import distributed
from posttrain.rollout.episode_sampler import Stream, episode_seeds
from posttrain.rollout.generator import RolloutBatch, RolloutSchedule
from posttrain.train.advantages.groups import EpisodeGroup
from posttrain.train.online.params import OnlineParams
from posttrain.train.online.trainer_state import TrainerState
from posttrain.types import Task


class RolloutCollector:
    """Collects one step after another; the next one ahead where that is asked for."""

    def __init__(self, rollouts: RolloutSchedule, state: TrainerState, params: OnlineParams, *, seed: int) -> None:
        self._rollouts, self._state, self._params, self._seed = rollouts, state, params, seed
        self._ahead: tuple[list[Task], RolloutBatch] | None = None

    def collect(self, step: int, *, is_ahead: bool) -> tuple[list[EpisodeGroup], int]:
        """The groups of a step, and by how many optimizer steps the weights that played are older.
        More tasks are played while groups that differ are missing and refills are left. `is_ahead`:
        the next step's episodes are begun, too."""
        groups: list[EpisodeGroup] = []
        missing, staleness, size = self._params.tasks_per_step, 0, self._params.group_size
        for refill in range(1 + self._params.sampling.max_refills):
            tasks, batch = self._ahead or self._batch(step, refill, missing)
            self._ahead = self._batch(step + 1, 0, self._params.tasks_per_step) if is_ahead else None
            episodes, staleness = self._rollouts.take(batch, following=self._ahead and self._ahead[1])
            for place, task in enumerate(tasks):
                group = self._state.grouped(task, episodes[place * size : (place + 1) * size])
                missing -= group.has_spread
                groups.append(group)
            if missing <= 0:
                break
        return groups, staleness

    def _batch(self, step: int, refill: int, missing: int) -> tuple[list[Task], RolloutBatch]:
        size, count = self._params.group_size, distributed.count()
        fewest = count // math.gcd(count, size)  # the fewest tasks whose episodes can be shared equally
        tasks = self._state.sampler.choose(-(-missing // fewest) * fewest)
        seeds = episode_seeds(Stream.ONLINE, self._seed, step, refill, count=len(tasks) * size)
        hints = [share for task in tasks for share in self._state.replay.hints(task, size)]
        return tasks, RolloutBatch([task for task in tasks for _ in range(size)], seeds, hints)


def trained_groups(groups: Sequence[EpisodeGroup], params: OnlineParams) -> list[bool]:
    """True for each group to train on: with refills the first that differ, as many as a step has;
    else all."""
    if not params.sampling.max_refills:
        return [True] * len(groups)
    num_before = np.cumsum([0, *(one.has_spread for one in groups)])
    return [one.has_spread and bool(num_before[place] < params.tasks_per_step) for place, one in enumerate(groups)]
