"""Replay of a task's latest success, in groups in which nothing succeeds (the reuse of AR3PO, arXiv
2509.25808).

It was sampled by older weights, which the importance weight of its tokens corrects, up to its cap;
so the gradient is biased as far as the cap acts, and towards tasks that succeeded once.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from posttrain.runtime.knobs import Section
from posttrain.train.replay.none import ExpertTraces, Replay
from posttrain.types import Outcome, ScoredEpisode, StopReason, Task, Trajectory


class BestReplay(Section):
    """The best episode of the task in earlier steps is a member of a group in which nothing
    succeeded (AR3PO's reuse)."""

    example: ClassVar[str] = "{}"
    type: Literal["best"]

    def make(self, _traces: ExpertTraces | None) -> "BestEpisodes":
        return BestEpisodes()


class BestEpisodes(Replay):
    """Keeps the latest success of each task: its tokens and their log-probabilities, not the
    conversation."""

    def __init__(self) -> None:
        self._by_task: dict[str, ScoredEpisode] = {}

    def replayed(self, task: Task, episodes: Sequence[ScoredEpisode]) -> Sequence[ScoredEpisode]:
        if successes := [one for one in episodes if one.is_success]:
            self._by_task[task.task_id] = successes[-1]
            return []
        kept = self._by_task.get(task.task_id)
        return [kept] if kept is not None else []

    def state(self) -> Mapping[str, object]:
        return {task: _packed(one) for task, one in self._by_task.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._by_task = {task: _unpacked(task, packed) for task, packed in state.items()}


def _packed(one: ScoredEpisode) -> dict[str, object]:
    trajectory = one.trajectory
    return {
        "token_ids": list(trajectory.token_ids),
        "mask": list(trajectory.mask),
        "logprobs": list(trajectory.logprobs),
        "reward": one.rule_reward,
        "bonus": one.bonus,
        "scores": dict(trajectory.scores),
    }


def _unpacked(task_id: str, packed: Mapping[str, Any]) -> ScoredEpisode:
    return ScoredEpisode(
        Trajectory(
            task_id,
            (),
            StopReason.DONE,
            token_ids=packed["token_ids"],
            mask=packed["mask"],
            logprobs=packed["logprobs"],
            reward=packed["reward"],
            scores=packed["scores"],
            outcome=Outcome(success=True, strict_success=False),
        ),
        bonus=packed["bonus"],
    )
