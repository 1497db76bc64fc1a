"""Schedules the play of a step's episodes. At its beginning, or one step ahead: while the step
before it is trained, by the weights before that.

Ahead pays where episodes are generated on other processors than those that train. What it costs is
that they are off policy by one optimizer step, which the importance weight corrects
(`importance.py`). Nothing is played ahead over a step that writes a checkpoint: a resumed run could
not play the same episodes, because the weights that they came from are gone.
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

import torch

from posttrain.models.distributed import gather, is_first, share_rows
from posttrain.types import ScoredEpisode, Task


class EpisodeSource(Protocol):
    """Plays and scores episodes with a model in training."""

    @property
    def is_elsewhere(self) -> bool:
        """Whether other machines write the messages: then the first process alone has them play,
        else each plays its share."""
        ...

    def refresh(self) -> None:
        """Take a copy of the model's weights as they are now."""
        ...

    def sleep(self) -> None:
        """Play nothing until the next `refresh`: the memory is the trainer's."""
        ...

    def play(self, tasks: Sequence[Task], seeds: Sequence[int], *, hints: Sequence[float] = ()) -> list[ScoredEpisode]:
        """One episode of `tasks[i]` under `seeds[i]` for every i, by the weights of the last
        `refresh`, behind the share `hints[i]` of an expert's turns where there are any; called from
        a thread of its own."""
        ...


@dataclass(frozen=True, slots=True)
class RolloutBatch:
    """The tasks and seeds of one step, each task as often as its group is large. `hints`: of each
    episode the share of an expert's turns that it begins behind; empty where nothing is given."""

    tasks: Sequence[Task]
    seeds: Sequence[int]
    hints: Sequence[float] = ()


class RolloutSchedule:
    """The episodes of one step after another. To be closed: an unfinished batch is waited for."""

    def __init__(self, source: EpisodeSource) -> None:
        self._source = source
        self._ahead: tuple[RolloutBatch, Future[list[ScoredEpisode]]] | None = None
        # The number of threads of an operation is each thread's own in PyTorch; another one here
        # would give other bits.
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
        """The step's episodes, those that other processes played among them, and by how many
        optimizer steps their weights are older than the model's (0 or 1). `following` is begun
        meanwhile."""
        own, own_following = self._own(batch), self._own(following) if following else None
        staleness = 0
        if self._ahead is not None and self._ahead[0] == own:
            staleness, played = 1, self._ahead[1].result()
            self._refresh(own)
        else:
            self._refresh(own)
            played = self._play(own)
        if own_following is None:
            self._ahead = None
            self._source.sleep()
        else:
            self._ahead = own_following, self._thread.submit(self._play, own_following)
        return [one for of_process in gather(played) for one in of_process], staleness

    def _own(self, batch: RolloutBatch) -> RolloutBatch:
        if self._source.is_elsewhere:
            return batch if is_first() else RolloutBatch((), ())
        return RolloutBatch(share_rows(batch.tasks), share_rows(batch.seeds), share_rows(batch.hints))

    def _refresh(self, own: RolloutBatch) -> None:
        """Nothing for a process that plays nothing: servers would get the weights once from
        each."""
        if own.tasks:
            self._source.refresh()

    def _play(self, own: RolloutBatch) -> list[ScoredEpisode]:
        if not own.tasks:
            return []
        return self._source.play(own.tasks, own.seeds, **({"hints": own.hints} if own.hints else {}))
