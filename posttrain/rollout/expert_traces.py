"""What the world's expert does on tasks that a policy plays: whole traces, as a policy's own would
look, and the first turns of one. An oracle: what learns from it is compared with what copies it.
"""

from collections.abc import Sequence
from dataclasses import replace

from posttrain.models.codec import ChatCodec
from posttrain.rewards.total import RuleReward
from posttrain.rollout.demonstrations import demonstrate
from posttrain.rollout.params import AgentParams
from posttrain.types import Message, Task, Trajectory
from posttrain.worlds.protocol import ExpertDomain


class ExpertTraces:
    """Of a flawless expert; each task's are played once."""

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
        self._shown: dict[str, list[Trajectory]] = {}

    def traces(self, task: Task, count: int) -> list[Trajectory]:
        """`count` of them, scored, with the tokens that a policy would have read and written, whose
        log-probabilities nobody knows: they stand as 0."""
        shown = self._shown.setdefault(task.task_id, [])
        while len(shown) < count:
            shown.append(self._trace(task, self._seed + len(shown)))
        return shown[:count]

    def first_turns(self, task: Task, share: float) -> list[Message]:
        """The agent's first messages in a trace, `share` of them rounded down, and never the
        last."""
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
        played = replace(
            row.trajectory,
            token_ids=tuple(encoded.input_ids),
            mask=tuple(encoded.mask),
            logprobs=(0.0,) * len(encoded.mask),
        )
        return self._reward.score(played, task)


def given_turns(traces: ExpertTraces, tasks: Sequence[Task], shares: Sequence[float]) -> list[Sequence[Message]]:
    """Of each episode the expert's messages that it begins behind."""
    return [traces.first_turns(task, share) if share else () for task, share in zip(tasks, shares, strict=True)]
