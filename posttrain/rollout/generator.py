"""Generates the episodes of each training step: at its beginning, or one step ahead, while the step
before is trained.

Generating ahead pays where episodes are written on other processors than those that train; they are
off policy by one optimizer step, which the importance weight corrects. Never ahead over a step that
writes a checkpoint: a resumed run could not generate the same episodes, because the weights that
wrote them are gone.
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Protocol, Self

import torch

from posttrain.models.distributed import gather, is_first, is_sharded, share_rows
from posttrain.rollout.asynchronous import AsynchronousSource
from posttrain.rollout.play_on import Fork
from posttrain.types import ScoredEpisode, StopReason, Task


class EpisodeSource(AsynchronousSource, Protocol):
    """Runs and scores episodes with a model in training, all of a step or groups without a
    pause."""

    @property
    def is_elsewhere(self) -> bool:
        """True where other machines write: the first process then runs all episodes."""
        ...

    def sleep(self) -> None:
        """Free the memory until the next `refresh`."""
        ...

    def run(
        self, tasks: Sequence[Task], seeds: Sequence[int], *, prefix_fracs: Sequence[float] = ()
    ) -> list[ScoredEpisode]:
        """One episode of `tasks[i]` under `seeds[i]` for every i; called in a thread. Episode i
        begins behind the share `prefix_fracs[i]` of an expert's turns."""
        ...

    def play_on(self, forks: Sequence[Fork]) -> list[ScoredEpisode]:
        """The branch of each fork, of one each. One whose world answers otherwise than recorded
        ends as TOOL_FAILED."""
        ...

    def refuse_many_aborted(self, episodes: Sequence[ScoredEpisode]) -> None:
        """Raises Interrupted where more of these, which all processes played together, were aborted
        than may be."""
        ...


@dataclass(frozen=True, slots=True)
class RolloutBatch:
    """One step's tasks and seeds, one an episode; `prefix_fracs` as in `EpisodeSource.run`."""

    tasks: Sequence[Task]
    seeds: Sequence[int]
    prefix_fracs: Sequence[float] = ()


class RolloutSchedule:
    """Generates one step's episodes after another, with a thread for the step ahead."""

    def __init__(self, source: EpisodeSource) -> None:
        self._source = source
        self._ahead: tuple[RolloutBatch, Future[list[ScoredEpisode]]] | None = None
        # PyTorch's number of threads for an operation is each thread's own setting, and another
        # number gives other bits.
        self._thread = ThreadPoolExecutor(
            1, "rollout", initializer=torch.set_num_threads, initargs=(torch.get_num_threads(),)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)

    def take(self, batch: RolloutBatch, *, following: RolloutBatch | None = None) -> tuple[list[ScoredEpisode], int]:
        """The step's episodes, of all processes, and by how many optimizer steps (0 or 1) their
        weights are older than the model's. `following` is begun and runs meanwhile. Raises
        Interrupted, in all processes, where too many were aborted."""
        own, own_following = self._own(batch), self._own(following) if following else None
        staleness = 0
        # Generated ahead, by the weights before the last step.
        if self._ahead is not None and self._ahead[0] == own:
            staleness, episodes = 1, self._ahead[1].result()
            self._refresh(own.tasks)
        else:
            self._refresh(own.tasks)
            episodes = self._run(own)
        if own_following is None:
            self._ahead = None
            # Nothing runs while this step is trained: its memory is the trainer's.
            self._source.sleep()
        else:
            self._ahead = own_following, self._thread.submit(self._run, own_following)
        together = [episode for of_process in gather(episodes) for episode in of_process]
        self._source.refuse_many_aborted(together)
        return together, staleness

    def play_on(self, forks: Sequence[Fork]) -> list[ScoredEpisode]:
        """The branches of all processes in the order of `forks`, without their texts and ids, by
        the weights as they are; nothing may be played ahead. Raises Interrupted, in all processes,
        where engines or agents aborted too many: what a world did not replay is no reason."""
        own = share_rows(forks)
        if self._source.is_elsewhere:
            own = forks if is_first() else ()
        branches: Sequence[ScoredEpisode] = ()
        if forks:
            self._refresh(own)
        if own:
            branches = self._source.play_on(own)
            self._source.sleep()
        together = [one for of_process in gather([_without_texts(one) for one in branches]) for one in of_process]
        self._source.refuse_many_aborted(
            [one for one in together if one.trajectory.stop_reason is not StopReason.TOOL_FAILED]
        )
        return together

    def _own(self, batch: RolloutBatch) -> RolloutBatch:
        if self._source.is_elsewhere:
            return batch if is_first() else RolloutBatch((), ())
        return RolloutBatch(share_rows(batch.tasks), share_rows(batch.seeds), share_rows(batch.prefix_fracs))

    def _refresh(self, own: Sequence[Any]) -> None:
        """Skipped without episodes, or servers would get the weights from each process; not where
        each has a shard of them."""
        if own or is_sharded():
            self._source.refresh()

    def _run(self, own: RolloutBatch) -> list[ScoredEpisode]:
        if not own.tasks:
            return []
        if not own.prefix_fracs:
            return self._source.run(own.tasks, own.seeds)
        return self._source.run(own.tasks, own.seeds, prefix_fracs=own.prefix_fracs)


def _without_texts(one: ScoredEpisode) -> ScoredEpisode:
    """A step may have thousands of branches, of which rewards and lengths are needed."""
    return replace(one, trajectory=replace(one.trajectory, messages=(), turns=(), token_ids=(), logprobs=()))
