"""One play in progress: what was said, the tokens behind it, the world it happens in; and its frozen record when it is over."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from posttrain.params import AgentParams
from posttrain.types import Message, StopReason, Task, ToolRun, Trajectory, Turn
from posttrain.worlds.protocol import World
from posttrain.worlds.tools import Tool


@dataclass(frozen=True, slots=True)
class Reply:
    """The agent's next message and, from an engine, the tokens behind it: `context_ids` read since the last reply, then `token_ids` written.

    `stop` is set where the policy cannot go on: TOKEN_LIMIT with the message cut off at the limit, or with no message where none had room.
    """

    message: Message | None
    stop: StopReason | None = None
    context_ids: Sequence[int] = ()
    token_ids: Sequence[int] = ()
    logprobs: Sequence[float] = ()
    policy_version: int = 0
    latency_s: float = 0.0


@dataclass(slots=True)
class Episode:
    """`messages` is the conversation so far; `token_ids`, `mask` and `logprobs` (one length) what an engine has seen of it."""

    episode_id: str
    task: Task
    world: World
    seed: int
    limits: AgentParams
    messages: list[Message]
    tools: Mapping[str, Tool] = field(init=False)
    token_ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    on_first_reply: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self.tools = self.world.tools()

    def unread(self) -> list[Message]:
        """The messages since the agent's last one: all of them before its first, afterwards tool results or the user's reply."""
        start = len(self.messages)
        while start and self.messages[start - 1].role != "assistant":
            start -= 1
        return self.messages[start:]

    def add_reply(self, reply: Reply) -> Message | None:
        """Record what the agent wrote; the message comes back with its calls numbered through the episode: `call_1`, `call_2`. Models do not write
        ids, and a parser sees one message only."""
        if not self.turns:
            self.on_first_reply()
        self.token_ids += [*reply.context_ids, *reply.token_ids]
        self.mask += [0] * len(reply.context_ids) + [1] * len(reply.token_ids)
        self.logprobs += [0.0] * len(reply.context_ids) + list(reply.logprobs)
        self.turns.append(Turn(len(reply.context_ids), len(reply.token_ids), reply.policy_version, latency_s=reply.latency_s))
        if reply.message is None:
            return None
        start = 1 + sum(len(earlier.tool_calls) for earlier in self.messages)
        calls = tuple(replace(call, id=f"call_{start + index}") for index, call in enumerate(reply.message.tool_calls))
        message = replace(reply.message, tool_calls=calls)
        self.messages.append(message)
        return message

    def add_results(self, results: Sequence[tuple[str, ToolRun]]) -> None:
        """Record the answers to the calls of the last message, in their order."""
        self.messages += [Message("tool", content, tool_call_id=run.call_id) for content, run in results]
        self.turns[-1] = replace(self.turns[-1], tool_runs=tuple(run for _, run in results))

    def trajectory(self, stop: StopReason, failure: str = "") -> Trajectory:
        """The record. Calls that the end left unanswered are answered with the reason of the end, so that records are paired."""
        answered = {message.tool_call_id for message in self.messages}
        open_calls = [call for message in self.messages for call in message.tool_calls if call.id not in answered]
        return Trajectory(
            task_id=self.task.task_id,
            messages=(*self.messages, *(Message("tool", f'{{"error":"{stop}"}}', tool_call_id=call.id) for call in open_calls)),
            stop_reason=stop,
            seed=self.seed,
            policy_version=self.turns[0].policy_version if self.turns else 0,
            token_ids=tuple(self.token_ids),
            mask=tuple(self.mask),
            logprobs=tuple(self.logprobs),
            turns=tuple(self.turns),
            failure=failure,
        )
