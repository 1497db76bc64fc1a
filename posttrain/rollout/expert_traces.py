"""Traces of the world's expert on a policy's tasks: whole ones with tokens, and their first turns.

An oracle: methods that learn from it are compared with supervised learning on the same traces.
"""

from collections.abc import Sequence
from dataclasses import replace

from posttrain.models.codec import ChatCodec
from posttrain.rewards.total import RuleReward
from posttrain.rollout.episodes import demonstrate
from posttrain.rollout.params import AgentParams
from posttrain.types import Message, Task, Trajectory
from posttrain.worlds.protocol import ExpertDomain


class ExpertTraces:
    """Traces of a flawless expert, cached by task."""

    def __init__(
        self,
        domain: ExpertDomain,
        codec: ChatCodec,
        *,
        reward: RuleReward,
        limits: AgentParams,
        reasoning_frac: float,
        seed: int,
    ) -> None:
        self._domain, self._codec, self._reward, self._limits = domain, codec, reward, limits
        self._reasoning_frac, self._seed = reasoning_frac, seed
        self._cache: dict[str, list[Trajectory]] = {}

    def traces(self, task: Task, count: int) -> list[Trajectory]:
        """`count` scored traces with tokens that nobody sampled: log-probabilities are 0."""
        traces = self._cache.setdefault(task.task_id, [])
        while len(traces) < count:
            traces.append(self._trace(task, self._seed + len(traces)))
        return traces[:count]

    def first_turns(self, task: Task, share: float) -> list[Message]:
        """The expert's first messages: `share` of them, rounded down, and never the last."""
        messages = [message for message in self.traces(task, 1)[0].messages if message.role == "assistant"]
        return messages[: min(int(share * len(messages)), len(messages) - 1)]

    def _trace(self, task: Task, seed: int) -> Trajectory:
        [row] = demonstrate(
            self._domain,
            [task],
            limits=self._limits,
            seed=seed,
            is_flawless=True,
            reasoning_frac=self._reasoning_frac,
        )
        encoded = self._codec.encode_row(row.trajectory.messages, row.tools)
        trajectory = replace(
            row.trajectory,
            token_ids=tuple(encoded.input_ids),
            mask=tuple(encoded.mask),
            logprobs=(0.0,) * len(encoded.mask),
        )
        return self._reward.score(trajectory, task)


def given_turns(traces: ExpertTraces, tasks: Sequence[Task], shares: Sequence[float]) -> list[Sequence[Message]]:
    """For each episode the expert's messages behind which it begins."""
    return [traces.first_turns(task, share) if share else () for task, share in zip(tasks, shares, strict=True)]
