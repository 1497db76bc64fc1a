"""Shared values of the library: messages, tasks, trajectories, scores.

Frozen and standard library only, so that a world, a reward or a test can be written without
importing a framework. An agent's messages are kept in OpenAI's format. A task's goal is known to
its world alone (`Task.goal`), and only its world grades an episode (`Outcome`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise, starmap
from typing import Any, Literal, TypeAlias

JsonValue: TypeAlias = "str | int | float | bool | Sequence[JsonValue] | Mapping[str, JsonValue] | None"
Role = Literal["system", "user", "assistant", "tool"]
PLANNER, WORKER = ROLES = ("planner", "worker")  # of two policies in one episode; the only one of others is the first
Split = Literal["sft", "rl", "dev", "test", "test_paraphrase", "dev_paraphrase", "test_noisy"]

SPLITS: tuple[Split, ...] = ("sft", "rl", "dev", "test", "test_paraphrase")  # every world's; the others are of some

MAX_NUMBER = 1e9  # absolute bound of a number from outside: its square and sums stay exact enough


class BadNumber(ValueError):
    """A number from outside that cannot be computed with; the text says which and why."""


def number(value: object, name: str, *, low: float = -MAX_NUMBER, high: float = MAX_NUMBER) -> float:
    """The float of a number from outside, in [low, high]. Raises BadNumber for NaN, infinity, an
    integer of hundreds of digits, and any text."""
    try:
        read = math.nan if isinstance(value, str | bytes) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        read = math.nan
    if low <= read <= high:  # false for NaN
        return read
    is_long = isinstance(value, int) and abs(value) > 10**20  # repr of over 4,300 digits raises
    shown = "an integer of more than 20 digits" if is_long else repr(value)[:80]
    raise BadNumber(f"{name} is {shown}; it must be a number from {low:g} to {high:g}")


class StopReason(StrEnum):
    """Reason of an episode's end. `DONE` and `STOP_TOOL` alone are the agent's own decision; the
    others are facts to count, not errors to raise."""

    DONE = "done"  # a message without a call, to which the world had no reply
    STOP_TOOL = "stop_tool"
    WORLD_OVER = "world_over"  # the world ended it, after a result or instead of a reply
    TURN_LIMIT = "turn_limit"
    TOKEN_LIMIT = "token_limit"
    TIME_LIMIT = "time_limit"
    ENGINE_LOST = "engine_lost"
    TOOL_FAILED = "tool_failed"  # a tool or the world failed by no mistake of the agent's
    AGENT_FAILED = "agent_failed"  # the agent's own program (a LangGraph graph, a client behind the proxy) raised


# Ends that say nothing about the agent.
ABORTED = frozenset({StopReason.ENGINE_LOST, StopReason.TOOL_FAILED, StopReason.AGENT_FAILED})


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call as the agent wrote it. `arguments` is JSON text and may not parse: a malformed call is
    data, the agent's mistake."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """A message of OpenAI's chat format. `reasoning_content` is None where the agent did not
    reason, never an empty string."""

    role: Role
    content: str = ""
    reasoning_content: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None

    def to_openai(self) -> dict[str, Any]:
        """The message as a dictionary of OpenAI's API; keys without a value are left out, `content`
        never is."""
        message: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.reasoning_content is not None:
            message["reasoning_content"] = self.reasoning_content
        if self.tool_calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in self.tool_calls
            ]
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        return message

    @classmethod
    def from_openai(cls, message: Mapping[str, Any]) -> "Message":
        """Read a dictionary of OpenAI's API; null content and absent keys are accepted. Raises
        KeyError or TypeError where it is none."""
        calls = message.get("tool_calls") or ()
        return cls(
            role=message["role"],
            content=message.get("content") or "",
            reasoning_content=message.get("reasoning_content") or None,
            tool_calls=tuple(
                ToolCall(call["id"], call["function"]["name"], call["function"].get("arguments") or "")
                for call in calls
            ),
            tool_call_id=message.get("tool_call_id"),
        )


def in_order_of_calls(messages: Sequence[Message], calls: Sequence[ToolCall]) -> list[Message]:
    """Messages behind a turn that made `calls`, with its results in the order of the calls: most
    chat templates write a result without the id of its call. Results of no call come last."""
    place = {call.id: index for index, call in enumerate(calls)}
    results = [message for message in messages if message.role == "tool"]
    results.sort(key=lambda result: place.get(result.tool_call_id or "", len(place)))
    left = iter(results)
    return [next(left) if message.role == "tool" else message for message in messages]


@dataclass(frozen=True, slots=True)
class Task:
    """A problem: the conversation that opens it, the tools offered, and the goal, which its world
    alone reads and no training data holds.

    `task_id` is the same on every branch as long as the question is. `labels` describe it
    (`{"kind": "tool_selection", "language": "zh"}`): results are broken down, rows weighted and
    resampled by those that params.yaml names. `goal` is JSON text, in a form of the world's own.
    `template` names the phrasing, empty where the world has none. `entities` are the world's ids of
    its subjects: two splits that share one leak. `agent_name` is the agent loop; of what was
    delegated it is `worker`.
    """

    task_id: str
    split: Split
    messages: tuple[Message, ...]
    tools: tuple[str, ...]
    labels: Mapping[str, str] = field(default_factory=dict)
    goal: str = ""
    template: str = ""
    entities: tuple[str, ...] = ()
    agent_name: str = "tools"


@dataclass(frozen=True, slots=True)
class Score:
    """A component of a reward: `value` in [0, 1], its breakdown, and one sentence on what would
    have been better."""

    value: float
    breakdown: Mapping[str, float] = field(default_factory=dict)
    feedback: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A world's grade of an episode, by its conversation and end state.

    `success`: the goal was reached. `strict_success`: reached, and no call was made outside of
    those that the goal accepts; never without `success`. `scores`: components by name, each in [0,
    1]. `reward`: the world's own, where it has one; it replaces the weighted scores. `turn_scores`:
    a credit for each of the agent's messages, in order; empty where the world gives none.
    `failure`: the class of a failure, in the world's words; empty for a success. `feedback`: one
    sentence on what would have been better. Raises ValueError where these contradict each other,
    BadNumber where a score or a reward is no number within its bounds.
    """

    success: bool
    strict_success: bool
    scores: Mapping[str, float] = field(default_factory=dict)
    reward: float | None = None
    turn_scores: tuple[float, ...] = ()
    failure: str = ""
    feedback: str = ""

    def __post_init__(self) -> None:
        if self.strict_success and not self.success:
            raise ValueError("an outcome is a strict success and no success; strict success implies success")
        if self.success and self.failure:
            raise ValueError(f"an outcome is a success and a failure of the class {self.failure!r}")
        for name, value in self.scores.items():
            number(value, f"an outcome's score {name!r}", low=0, high=1)
        for value in (*self.turn_scores, *(() if self.reward is None else (self.reward,))):
            number(value, "an outcome's reward")


ToolOutcome = Literal["ok", "error", "timeout", "failed"]


@dataclass(frozen=True, slots=True)
class ToolRun:
    """The run of a call: how long it took, retries included, and how it ended. `error` is a mistake
    that the agent read about."""

    call_id: str
    name: str
    outcome: ToolOutcome
    num_attempts: int = 1
    latency_s: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class Turn:
    """An agent message and the calls it made. The engine read `num_read` tokens before it wrote
    `num_written` under `policy_version`'s weights.

    `message_index` is the message's index in `Trajectory.messages`, None where the context had no
    room for one: a program that keeps its conversation may insert assistant messages that the agent
    never wrote.
    """

    num_read: int
    num_written: int
    policy_version: int
    message_index: int | None
    tool_runs: tuple[ToolRun, ...] = ()
    latency_s: float = field(default=0.0, compare=False)  # of writing, waiting for a place in the batch included


@dataclass(frozen=True, slots=True)
class Delegated:
    """A worker's conversation within an episode. `tools` are the schemas that it was offered;
    `stop_reason` is `time_limit` where it was cut off. Its tokens are windows of the episode."""

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...]
    stop_reason: StopReason
    turns: tuple[Turn, ...] = ()


@dataclass(frozen=True, slots=True)
class Trajectory:
    """The frozen record of one episode: the whole conversation, opening messages included.

    `token_ids`, `mask` and `logprobs` have one length, T: the tokens that the engine saw, 1 in
    `mask` where the agent wrote the token, and its log-probability there (0.0 elsewhere). All three
    are empty for a text-only policy. `outcome` is the world's grade, None where there is none: the
    episode was aborted, or came from elsewhere. `scores` and `reward` are by params.yaml, absent
    until scored. `window_starts` are the indices of the tokens at which the agent read the
    conversation anew with older turns left out (`agent.memory`): no token looks back over one.
    What was `delegated` has further windows at the end; `window_roles` says then who wrote in each.
    `policy_version` is the first turn's; `turns` has each one's. `failure` says what
    happened where `stop_reason` is one of ABORTED. `num_forks` counts how often the agent's own
    program went on from another conversation than it had been given; all else is of the last one.
    """

    task_id: str
    messages: tuple[Message, ...]
    stop_reason: StopReason
    seed: int = 0
    policy_version: int = 0
    token_ids: Sequence[int] = ()
    mask: Sequence[int] = ()
    logprobs: Sequence[float] = ()
    scores: Mapping[str, float] = field(default_factory=dict)
    reward: float | None = None
    turns: tuple[Turn, ...] = ()
    window_starts: tuple[int, ...] = ()
    window_roles: tuple[str, ...] = ()
    delegated: tuple[Delegated, ...] = ()
    num_forks: int = 0
    failure: str = ""
    outcome: Outcome | None = None

    @property
    def windows(self) -> list[slice]:
        """The places of each context window's tokens; one of all of them where nothing was left
        out."""
        return list(starmap(slice, pairwise([0, *self.window_starts, len(self.token_ids)])))

    @property
    def roles(self) -> Sequence[str]:
        """The role of each window."""
        return self.window_roles or (PLANNER,) * (1 + len(self.window_starts))

    @property
    def num_own_tokens(self) -> int:
        """The number of the tokens before those of what was delegated."""
        windows = zip(self.roles, self.windows, strict=True)
        return sum(part.stop - part.start for role, part in windows if role == PLANNER)

    @property
    def turn_messages(self) -> list[Message | None]:
        """The agent's message of each turn; None where the context had no room for one."""
        places = [turn.message_index for turn in self.turns]
        return [None if place is None else self.messages[place] for place in places]

    @property
    def is_aborted(self) -> bool:
        """True where it ended through no doing of the agent's: it is not trained on, and no rate
        counts it."""
        return self.stop_reason in ABORTED

    @property
    def is_success(self) -> bool:
        """True where its world graded it a success; False where nobody graded it."""
        return self.outcome is not None and self.outcome.success

    @property
    def is_strict_success(self) -> bool:
        """True where its world graded it a strict success; False where nobody graded it."""
        return self.outcome is not None and self.outcome.strict_success


@dataclass(frozen=True, slots=True)
class ScoredEpisode:
    """An episode that was scored by rules; `bonus` is what a reward model adds to
    that reward, less the weighted costs of constraints."""

    trajectory: Trajectory
    bonus: float = 0.0

    @property
    def rule_reward(self) -> float:
        """The reward by rules, which the metrics are about; 0.0 of a lost episode, which no group
        counts."""
        if self.is_aborted:
            return 0.0
        assert self.trajectory.reward is not None
        return self.trajectory.reward

    @property
    def is_success(self) -> bool:
        return self.trajectory.is_success

    @property
    def is_aborted(self) -> bool:
        return self.trajectory.is_aborted
