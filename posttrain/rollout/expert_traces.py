"""Traces that a policy learns from beside its own on its tasks: of the world's expert, whole ones
with tokens and their first turns, and of verified edits.

The expert is an oracle: methods that learn from it are compared with supervised learning on the
same traces.
"""

from collections.abc import Sequence
from dataclasses import replace

from posttrain.data.edits import VerifiedEdit
from posttrain.data.schemas import TrajectoryRow, trajectory_row
from posttrain.models.codec import ChatCodec
from posttrain.rewards.total import RuleReward
from posttrain.rollout.conversation import is_same
from posttrain.rollout.episodes import demonstrate
from posttrain.rollout.params import AgentParams
from posttrain.types import Message, Task, Trajectory
from posttrain.worlds.protocol import Domain, ExpertDomain


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
        return self._reward.score(_with_tokens(row, self._codec), task)


class EditTraces:
    """The branches behind verified edits, with the tokens of today's model."""

    def __init__(self, edits: Sequence[VerifiedEdit], codec: ChatCodec, *, domain: Domain, reward: RuleReward) -> None:
        self._of_task: dict[str, list[Trajectory]] = {}
        for edit in edits:
            branch = _with_tokens(trajectory_row(edit.pair()[0], edit.task, domain.tools), codec)
            self._of_task.setdefault(edit.task.task_id, []).append(reward.score(branch, edit.task))

    def traces(self, task: Task, count: int) -> list[Trajectory]:
        """At most `count` branches of the task; log-probabilities are 0."""
        return self._of_task.get(task.task_id, [])[:count]


def _with_tokens(row: TrajectoryRow, codec: ChatCodec) -> Trajectory:
    """The row's episode with tokens that nobody sampled: all messages of the agent are its own."""
    encoded = codec.encode_row(row.trajectory.messages, row.tools)
    return replace(
        row.trajectory,
        token_ids=tuple(encoded.input_ids),
        mask=tuple(encoded.mask),
        logprobs=(0.0,) * len(encoded.mask),
    )


def given_turns(traces: ExpertTraces, tasks: Sequence[Task], shares: Sequence[float]) -> list[Sequence[Message]]:
    """For each episode the expert's messages behind which it begins."""
    return [traces.first_turns(task, share) if share else () for task, share in zip(tasks, shares, strict=True)]


def first_deviation(domain: ExpertDomain, task: Task, episode: Trajectory) -> tuple[int, Message] | None:
    """The first turn, from 1, at which the agent wrote another message than the world's flawless
    expert does behind the same conversation, and the expert's message; None where there is none. An
    oracle, for tests of suggestions."""
    expert = domain.expert(task, seed=episode.seed, is_flawless=True, reasoning_frac=0.0)
    for number, turn in enumerate(episode.turns, 1):
        place = len(episode.messages) if turn.message_index is None else turn.message_index
        try:
            message = expert.reply(episode.messages[:place])
        except RuntimeError:  # the script has ended and the agent goes on
            return None
        if place == len(episode.messages) or not is_same(episode.messages[place], message):
            return number, message
    return None
