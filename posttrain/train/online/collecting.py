"""Collects the groups of each training step: all of a step's, or those that end first."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

from posttrain.models import distributed
from posttrain.rollout.asynchronous import AsynchronousRollouts, GroupInPlay
from posttrain.rollout.episode_sampler import Stream, episode_seeds
from posttrain.rollout.generator import EpisodeSource, RolloutBatch, RolloutSchedule
from posttrain.runtime.exits import ConfigurationError
from posttrain.train.advantages.groups import EpisodeGroup
from posttrain.train.online.params import OnlineParams
from posttrain.train.online.trainer_state import TrainerState
from posttrain.types import Task


class RolloutCollector:
    """Collects one step after another; the next one ahead where that is asked for."""

    def __init__(
        self,
        rollouts: RolloutSchedule,
        state: TrainerState,
        params: OnlineParams,
        checkpoint_every_steps: int,
        *,
        seed: int,
    ) -> None:
        self._rollouts, self._state, self._params, self._seed = rollouts, state, params, seed
        self._checkpoint_every_steps = checkpoint_every_steps
        self._ahead: tuple[list[Task], RolloutBatch] | None = None

    def pause(self) -> None:
        """Nothing is played beside."""

    def collect(self, step: int) -> tuple[list[EpisodeGroup], int]:
        """A step's groups, and by how many optimizer steps the weights that played are older.
        More tasks are played while groups that differ are missing and refills are left. The next
        step's episodes are begun where they may be."""
        groups: list[EpisodeGroup] = []
        missing, staleness, size = self._params.tasks_per_step, 0, self._params.group_size
        for refill in range(1 + self._params.sampling.max_refills):
            tasks, batch = self._ahead or self._batch(step, refill, missing)
            self._ahead = self._batch(step + 1, 0, self._params.tasks_per_step) if self._may_begin(step + 1) else None
            episodes, staleness = self._rollouts.take(batch, following=self._ahead and self._ahead[1])
            for place, task in enumerate(tasks):
                group = self._state.grouped(task, episodes[place * size : (place + 1) * size])
                missing -= group.has_spread
                groups.append(group)
            if missing <= 0:
                break
        return groups, staleness

    def _may_begin(self, step: int) -> bool:
        """True where this step's episodes may be played while the one before trains: not over a
        checkpoint, nor where its weights play dev tasks."""
        is_kept = step % self._checkpoint_every_steps == 0 or step == self._params.max_steps
        return self._params.max_staleness == 1 and not is_kept and step % self._params.dev.every_steps != 0

    def _batch(self, step: int, refill: int, missing: int) -> tuple[list[Task], RolloutBatch]:
        size, count = self._params.group_size, distributed.count()
        fewest = count // math.gcd(count, size)  # the fewest tasks whose episodes can be shared equally
        tasks = self._state.sampler.choose(-(-missing // fewest) * fewest)
        seeds = episode_seeds(Stream.ONLINE, self._seed, step, refill, count=len(tasks) * size)
        hints = [share for task in tasks for share in self._state.replay.hints(task, size)]
        return tasks, RolloutBatch([task for task in tasks for _ in range(size)], seeds, hints)


class AsynchronousCollector:
    """Collects the groups that end first, while others are played. All processes draw the same
    tasks, and the first has them played.

    Of `max_staleness` k half is for play that is ahead, so that (1 + k / 2) steps' groups are begun
    at any time, and half for groups that others overtake.
    """

    def __init__(
        self,
        playing: AsynchronousRollouts,
        source: EpisodeSource,
        state: TrainerState,
        params: OnlineParams,
        *,
        seed: int,
    ) -> None:
        self._playing, self._source, self._state = playing, source, state
        self._params, self._seed = params, seed
        # groups that nobody has taken, by their numbers: the task, and in which step it was begun
        self._begun: dict[int, tuple[Task, int]] = {}

    def pause(self) -> None:
        """Leave the engine to others until `collect`."""
        if distributed.is_first():
            self._playing.pause()

    def collect(self, step: int) -> tuple[list[EpisodeGroup], int]:
        """A step's groups, and by how many optimizer steps the weights that began the oldest of
        their episodes are older; each message's importance weights are by its own."""
        if distributed.is_first():
            self._playing.resume()
        elif distributed.is_sharded():
            self._source.refresh()
        count, size = self._params.tasks_per_step, self._params.group_size
        num_steps = 1 + math.ceil(self._params.max_staleness / 2)
        for task in self._state.sampler.choose(num_steps * count - len(self._begun)):
            self._begin(task, step, size)
        taken = self._playing.take(count, step=step) if distributed.is_first() else []
        found = distributed.from_first([(one.number, one.episodes or []) for one in taken])
        self._source.refuse_many_aborted([one for _, episodes in found for one in episodes])
        tasks, begun = zip(*(self._begun.pop(number) for number, _ in found), strict=True)
        groups = [self._state.grouped(task, episodes) for task, (_, episodes) in zip(tasks, found, strict=True)]
        return groups, step - min(begun)

    def _begin(self, task: Task, step: int, size: int) -> None:
        number = self._state.num_begun
        self._state.num_begun += 1
        self._begun[number] = task, step
        if distributed.is_first():
            seeds = episode_seeds(Stream.ASYNCHRONOUS, self._seed, number, count=size)
            self._playing.begin(GroupInPlay(number, step + self._params.max_staleness), [task] * size, seeds)


@contextmanager
def collecting(
    rollouts: RolloutSchedule,
    source: EpisodeSource,
    state: TrainerState,
    params: OnlineParams,
    checkpoint_every_steps: int,
    *,
    seed: int,
) -> Iterator[RolloutCollector | AsynchronousCollector]:
    """What collects the groups of each step, by `params.max_staleness`. Raises ConfigurationError
    where several processes would play without a pause, each by itself."""
    if params.max_staleness < 2:
        yield RolloutCollector(rollouts, state, params, checkpoint_every_steps, seed=seed)
        return
    if distributed.count() > 1 and not source.is_elsewhere:
        raise ConfigurationError(
            f"train_policy.algorithm.max_staleness is {params.max_staleness}, and each of {distributed.count()} "
            "processes plays with an engine of its own, in which other groups end first: have vLLM servers play "
            "(docs/serve.md), or set it to 0 or 1"
        )
    with AsynchronousRollouts(source) as playing:
        yield AsynchronousCollector(playing, source, state, params, seed=seed)
