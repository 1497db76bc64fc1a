"""The values that every part of the library passes to another: messages, tasks, trajectories,
scores.

Frozen and standard library only, so that a world, a reward or a test can be written without
importing a framework. What an agent did is kept as the messages it wrote, OpenAI's format; what a
task wants is kept as typed values (`Gold`), never as text to look for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import Any, Literal, TypeAlias

JsonValue: TypeAlias = "str | int | float | bool | Sequence[JsonValue] | Mapping[str, JsonValue] | None"
Role = Literal["system", "user", "assistant", "tool"]
Kind = Literal["tool_selection", "multi_step_planning", "timing_decision", "tool_retrieval"]
Split = Literal["sft", "rl", "dev", "test", "test_paraphrase"]

KINDS: tuple[Kind, ...] = ("tool_selection", "multi_step_planning", "timing_decision", "tool_retrieval")
SPLITS: tuple[Split, ...] = ("sft", "rl", "dev", "test", "test_paraphrase")


class StopReason(StrEnum):
    """Why an episode ended. Only `DONE` and `STOP_TOOL` are the agent's own decision; the others
    are facts to count, not errors to raise."""

    DONE = "done"  # a message without a call, to which the world had no reply
    STOP_TOOL = "stop_tool"
    TURN_LIMIT = "turn_limit"
    TOKEN_LIMIT = "token_limit"
    TIME_LIMIT = "time_limit"
    ENGINE_LOST = "engine_lost"
    TOOL_FAILED = "tool_failed"  # a tool raised what is no mistake of the agent's, or never answered
    AGENT_FAILED = "agent_failed"  # the agent's own program (a LangGraph graph, a client behind the proxy) raised


LOST = frozenset(
    {StopReason.ENGINE_LOST, StopReason.TOOL_FAILED, StopReason.AGENT_FAILED}
)  # ends that say nothing about the agent


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call as the agent wrote it. `arguments` is JSON text and may not parse: a malformed call
    is data, the agent's mistake."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """One message in OpenAI's chat format. `reasoning_content` is None where the agent did not
    reason, never an empty string."""

    role: Role
    content: str = ""
    reasoning_content: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None

    def to_openai(self) -> dict[str, Any]:
        """The message as OpenAI's API has it; keys without a value are left out, `content` never
        is."""
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
        """Raises KeyError or TypeError where the mapping is not an OpenAI message; null content and
        absent keys are accepted."""
        calls = message.get("tool_calls") or ()
        return cls(
            role=message["role"],
            content=message.get("content") or "",
            reasoning_content=message.get("reasoning_content") or None,
            tool_calls=tuple(
                ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in calls
            ),
            tool_call_id=message.get("tool_call_id"),
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """One typed value, as a task wants it or as an agent's last line states it.

    `number`: `value` is a Decimal and `unit` its unit (`HKD`, `CNY`, `%`, `shares`, `x`); 12.30 HKD
    equals 12.3 HKD, 1.5 is not 15. `code`: a listing's canonical code (`00700.HK`). `choice`: one
    word of a closed set (`up`, `done`). `unit` is empty for both.
    """

    type: Literal["number", "code", "choice"]
    value: Decimal | str
    unit: str = ""


@dataclass(frozen=True, slots=True)
class GoldCall:
    """A call of the shortest plan. For each argument the accepted values, in the manner of BFCL; a
    None among them means "may be left out".

    `holds_answer`: the answer is in this call's result, so an episode that never made it did not
    find the answer, whatever it says.
    """

    name: str
    arguments: Mapping[str, tuple[JsonValue, ...]]
    holds_answer: bool = True


@dataclass(frozen=True, slots=True)
class Gold:
    """What a task wants. No `calls` means that calling any tool is wrong; `asks` names what must be
    asked back before the first call."""

    answer: Answer
    calls: tuple[GoldCall, ...] = ()
    asks: str | None = None


@dataclass(frozen=True, slots=True)
class Task:
    """One problem: the conversation that opens it, the tools offered, and the gold that only
    rewards and evaluation may see.

    `task_id` is a hash of the content, the same on every branch. `market` is `a`, `hk`, `both` or
    `none`; `language` is `zh` or `en`; `difficulty` is 1 (easiest) to 3. `companies` are the
    world's ids of the companies it is about, empty where it is about none; `template` names the
    phrasing.
    """

    task_id: str
    kind: Kind
    market: str
    language: str
    difficulty: int
    split: Split
    template: str
    messages: tuple[Message, ...]
    tools: tuple[str, ...]
    companies: tuple[str, ...]
    gold: Gold
    agent_name: str = "tools"


@dataclass(frozen=True, slots=True)
class Score:
    """One component of a reward: `value` in [0, 1], what it was made of, and one sentence on what
    would have been better."""

    value: float
    breakdown: Mapping[str, float] = field(default_factory=dict)
    feedback: str = ""


ToolOutcome = Literal["ok", "error", "timeout", "failed"]


@dataclass(frozen=True, slots=True)
class ToolRun:
    """What became of one call: how long it took, retries included, and how it ended. `error` is a
    mistake that the agent read about."""

    call_id: str
    name: str
    outcome: ToolOutcome
    num_attempts: int = 1
    latency_s: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class Turn:
    """One agent message and the calls it made. The engine read `num_read` tokens before it wrote
    `num_written` under `policy_version`'s weights.

    `message_index` is the message's place in `Trajectory.messages`, None where the context had no
    room for one: a program that keeps its conversation may put assistant messages into it that the
    agent never wrote.
    """

    num_read: int
    num_written: int
    policy_version: int
    message_index: int | None
    tool_runs: tuple[ToolRun, ...] = ()
    latency_s: float = field(default=0.0, compare=False)  # of writing, waiting for a place in the batch included


@dataclass(frozen=True, slots=True)
class Trajectory:
    """The frozen record of one episode: the whole conversation, opening messages included.

    `token_ids`, `mask` and `logprobs` have one length, T: the episode as the engine saw it, 1 in
    `mask` where the agent wrote the token, and its log-probability there (0.0 elsewhere). All three
    are empty where a text-only policy played. `scores` and `reward` are absent until scored.
    `policy_version` is the first turn's; `turns` has each one's. `failure` says what happened where
    `stop_reason` is one of LOST. `num_forks` counts how often the agent's own program went on from
    another conversation than it had been given; all else is of the last one.
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
    num_forks: int = 0
    failure: str = ""
