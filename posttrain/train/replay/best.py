"""The best episode of each task so far, for groups in which nothing succeeds (the reuse of AR3PO,
arXiv 2509.25808).

It was drawn by older weights, which the importance weight of its tokens tells, up to its cap; so
the gradient is biased as far as the cap acts, and towards tasks that succeeded once.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from posttrain.train.online.episode_groups import EpisodeGroup
from posttrain.train.replay.nothing import NothingJoins
from posttrain.types import Outcome, ScoredEpisode, StopReason, Task, Trajectory


class BestEpisodes(NothingJoins):
    """The latest success of each task. Its state is in the checkpoint: tokens, and what they were
    drawn with."""

    def __init__(self) -> None:
        self._by_task: dict[str, ScoredEpisode] = {}

    def join(self, task: Task, played: Sequence[ScoredEpisode]) -> EpisodeGroup:
        """The group with the task's latest success where it has none of its own."""
        if successes := [one for one in played if one.is_success]:
            self._by_task[task.task_id] = successes[-1]
            return EpisodeGroup(task, played)
        kept = self._by_task.get(task.task_id)
        return EpisodeGroup(task, played, [kept] if kept is not None else [])

    def state(self) -> Mapping[str, object]:
        """As JSON has it, for a checkpoint."""
        return {task: _packed(one) for task, one in self._by_task.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """The reverse; the conversation is not part of it, nothing learns from that."""
        self._by_task = {task: _unpacked(task, packed) for task, packed in state.items()}


def _packed(one: ScoredEpisode) -> dict[str, object]:
    played = one.trajectory
    return {
        "token_ids": list(played.token_ids),
        "mask": list(played.mask),
        "logprobs": list(played.logprobs),
        "reward": one.rule_reward,
        "bonus": one.bonus,
        "scores": dict(played.scores),
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
