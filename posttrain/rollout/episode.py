"""An episode in progress: conversation, tokens, world and tools, and its frozen record at the
end."""

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from inspect import isawaitable
from itertools import chain
from typing import Any

from posttrain.rollout.conversation import Conversation, bounded, is_same
from posttrain.rollout.memory import Window, shown_in, windows_of
from posttrain.rollout.params import AgentParams
from posttrain.runtime.limits import MAX_REPLY_CHARS, clip
from posttrain.types import WORKER, BadNumber, Delegated, Message, Outcome, StopReason, Task, ToolRun, Trajectory, Turn
from posttrain.worlds.grading import completed
from posttrain.worlds.protocol import Delegation, EndingWorld, OpeningWorld, World, WorldFailed
from posttrain.worlds.tools import Tool


@dataclass(frozen=True, slots=True)
class Reply:
    """The agent's next message and, from an engine, its tokens: `context_ids` read since the last
    reply, then `token_ids` written. `stop` is TOKEN_LIMIT with a message cut off, or without one
    where there was no room."""

    message: Message | None
    stop: StopReason | None = None
    context_ids: Sequence[int] = ()
    token_ids: Sequence[int] = ()
    logprobs: Sequence[float] = ()
    policy_version: int = 0
    latency_s: float = 0.0


class Workplace:
    """The world of what was delegated: tools, and a message without a call is the end."""

    def __init__(self, tools: Mapping[str, Tool]) -> None:
        self._tools = tools

    def tools(self) -> Mapping[str, Tool]:
        return self._tools

    def user_reply(self, message: Message) -> str | None:
        del message
        return None

    def grade(self, trajectory: Trajectory) -> Outcome:
        raise WorldFailed(f"{trajectory.task_id} was delegated, and is graded with the whole episode")


@dataclass(slots=True)
class Episode:
    """One attempt at a task. `now` is the conversation that will be recorded; `num_forks` counts
    how often its program went on from another one than it had been given. What a tool delegates is
    an episode of its own with a `parent`, the `number` (from 0) among them; `stop` ended it."""

    episode_id: str
    task: Task
    world: World
    seed: int
    limits: AgentParams
    now: Conversation = field(init=False)
    tools: Mapping[str, Tool] = field(init=False)
    num_replies: int = 0
    num_forks: int = 0
    on_first_reply: Callable[[], None] = lambda: None
    parent: "Episode | None" = None
    number: int = 0
    stop: StopReason = StopReason.TIME_LIMIT
    _delegated: list["Episode"] = field(default_factory=list)
    _left: list[Conversation] = field(default_factory=list)  # conversations that the program may come back to

    def __post_init__(self) -> None:
        self.tools = self.world.tools()
        self.now = Conversation(list(self.task.messages), self.task_schemas())

    @property
    def messages(self) -> list[Message]:
        return self.now.messages

    @property
    def turns(self) -> list[Turn]:
        return self.now.turns

    def delegate(self, given: Delegation) -> "Episode":
        """An episode of what a tool delegated, under a seed of its own; its record is part of this
        one's."""
        number, limits = len(self._delegated), self.limits
        name = f"{WORKER}-{number + 1}"
        if limits.worker is not None:
            limits = limits.model_copy(update={"max_turns": limits.worker.max_turns})
        seed = int.from_bytes(hashlib.sha256(f"{self.seed} {name}".encode()).digest()[:4], "big")
        world, episode_id = Workplace(given.tools), f"{self.episode_id}/{name}"
        own = Episode(episode_id, given.task, world, seed, limits, parent=self, number=number)
        self._delegated.append(own)
        return own

    def read(self) -> Conversation:
        """The conversation as the agent reads it now: `now`, or its last window (memory.py)."""
        window = self._windows()[-1]
        if not window.new:
            return self.now
        now, start = self.now, self._num_tokens(window.new)
        shown = shown_in(now.messages, now.written(), window, self.limits.memory)
        shift = len(shown) - len(now.messages)
        return Conversation(
            shown,
            now.schemas,
            now.token_ids[start:],
            now.mask[start:],
            now.logprobs[start:],
            [replace(turn, message_index=(turn.message_index or 0) + shift) for turn in now.turns[window.new :]],
        )

    def _windows(self) -> list[Window]:
        return windows_of(len(self.now.written()), self.limits.memory)

    def _num_tokens(self, num_turns: int) -> int:
        return sum(turn.num_read + turn.num_written for turn in self.turns[:num_turns])

    def task_schemas(self) -> list[dict[str, Any]]:
        """OpenAI's schemas of the tools that the task offers."""
        return [self.tools[name].schema() for name in self.task.tools]

    def is_continued_by(self, messages: Sequence[Message], schemas: Sequence[Mapping[str, Any]]) -> bool:
        """True where `messages` continue this conversation: all that was read stands, and no added
        message is the agent's. Any conversation does before the agent's first message."""
        num_same = self.now.num_same(messages, schemas)
        is_all_read_kept = self.now.num_turns_within(num_same) == len(self.turns)
        return is_all_read_kept and (
            not self.num_replies or all(message.role != "assistant" for message in messages[num_same:])
        )

    def go_on_from(self, messages: Sequence[Message], schemas: Sequence[Mapping[str, Any]]) -> None:
        """Replace the conversation by the program's. A fork, which does not continue it, keeps the
        longest run of turns that stands unchanged in any conversation of this episode."""
        if self.is_continued_by(messages, schemas):
            self.now = self.now.continued(len(self.turns), messages, schemas)
            return
        self.num_forks += 1
        if self.turns:
            # A program may alternate between conversations: each left one keeps its tokens.
            self._left.append(self.now)
        num_turns, kept = 0, self.now
        # Newest first: of equally long beginnings the latest one wins.
        for left in reversed(self._left):
            if (num_kept := left.num_turns_within(left.num_same(messages, schemas))) > num_turns:
                num_turns, kept = num_kept, left
        self.now = kept.continued(num_turns, messages, schemas)

    def own_words(self, message: Message) -> Message | None:
        """The message where the agent wrote it in any conversation of this episode, or None."""
        conversations = (self.now, *self._left)
        is_own = message.role == "assistant" and any(
            is_same(conversation.messages[index], message)
            for conversation in conversations
            for index in conversation.written()
        )
        return message if is_own else None

    def add_reply(self, reply: Reply) -> Message | None:
        """Record a reply; returns its message with calls numbered through the episode (`call_1`,
        …): models write no ids, and a parser sees one message only."""
        if not self.num_replies:
            self.on_first_reply()
        self.num_replies += 1
        now = self.now
        now.token_ids += [*reply.context_ids, *reply.token_ids]
        now.mask += [0] * len(reply.context_ids) + [1] * len(reply.token_ids)
        now.logprobs += [0.0] * len(reply.context_ids) + list(reply.logprobs)
        message_index = None if reply.message is None else len(now.messages)
        now.turns.append(
            Turn(
                len(reply.context_ids),
                len(reply.token_ids),
                reply.policy_version,
                message_index,
                latency_s=reply.latency_s,
            )
        )
        if reply.message is None:
            return None
        start = 1 + sum(len(earlier.tool_calls) for earlier in now.messages)
        calls = tuple(replace(call, id=f"call_{start + index}") for index, call in enumerate(reply.message.tool_calls))
        message = replace(reply.message, tool_calls=calls)
        if not reply.token_ids:  # what is trained on stands as it was sampled, and its length is the engine's limit
            message = bounded(message)
        now.messages.append(message)
        return message

    async def open(self) -> None:
        if isinstance(self.world, OpeningWorld):
            opening = self.world.opening()
            self.messages.extend(map(bounded, await opening if isawaitable(opening) else opening))

    async def user_reply(self, message: Message) -> str | None:
        """The answer of the world's user, redacted and cut; None ends the episode."""
        answer = self.world.user_reply(message)
        answer = await answer if isawaitable(answer) else answer
        return None if answer is None else clip(answer, MAX_REPLY_CHARS)

    def is_over(self) -> bool:
        """True where the world ends the episode now."""
        return isinstance(self.world, EndingWorld) and self.world.is_over()

    async def graded(self, trajectory: Trajectory) -> Trajectory:
        """The trajectory with its world's outcome; an aborted one as it is. Raises WorldFailed."""
        if trajectory.is_aborted:
            return trajectory
        try:
            outcome = self.world.grade(trajectory)
            outcome = await outcome if isawaitable(outcome) else outcome
        except BadNumber as error:
            raise WorldFailed(f"the world's verdict cannot be used: {error}") from error
        return replace(trajectory, outcome=completed(outcome, trajectory, self.tools))

    def add_results(self, results: Sequence[tuple[str, ToolRun]]) -> None:
        """Record the answers to the calls of the last message, in their order."""
        self.messages.extend(Message("tool", content, tool_call_id=run.call_id) for content, run in results)
        self.add_runs([run for _, run in results])

    def add_runs(self, runs: Sequence[ToolRun]) -> None:
        self.turns[-1] = replace(self.turns[-1], tool_runs=(*self.turns[-1].tool_runs, *runs))

    def trajectory(self, stop: StopReason, failure: str = "") -> Trajectory:
        """The frozen record. Every call has a result: the reason of the end for an open one."""
        own, worker = self._own_trajectory(stop, failure), self.limits.worker
        return own if self.parent else _joined(own, self._delegated, worker.others if worker is not None else ())

    def _own_trajectory(self, stop: StopReason, failure: str = "") -> Trajectory:
        now = self.now
        answered = {message.tool_call_id for message in now.messages}
        open_calls = [call for message in now.messages for call in message.tool_calls if call.id not in answered]
        return Trajectory(
            task_id=self.task.task_id,
            messages=(
                *now.messages,
                *(Message("tool", f'{{"error":"{stop}"}}', tool_call_id=call.id) for call in open_calls),
            ),
            stop_reason=stop,
            seed=self.seed,
            policy_version=now.turns[0].policy_version if now.turns else 0,
            token_ids=tuple(now.token_ids),
            mask=tuple(now.mask),
            logprobs=tuple(now.logprobs),
            turns=tuple(now.turns),
            window_starts=tuple(
                self._num_tokens(window.new) for window in self._windows() if 0 < window.new < len(now.turns)
            ),
            num_forks=self.num_forks,
            failure=failure,
        )


def _joined(own: Trajectory, delegated: Sequence[Episode], others: Collection[str]) -> Trajectory:
    """The record with what was delegated, and without the tokens that the roles `others` wrote,
    which are of other weights. A worker's are further windows: of 7 and 5 tokens, the latter in
    windows of 3 and 2, the windows start at 7 and 10."""
    if not delegated and not others:
        return own
    if others and WORKER not in others:
        own = replace(own, token_ids=(), mask=(), logprobs=(), window_starts=())
    parts = [one.trajectory(one.stop) for one in delegated]
    windows = [] if WORKER in others else [part for part in parts if part.token_ids]
    starts, end = list(own.window_starts), len(own.token_ids)
    for part in windows:
        starts += [end + start for start in (0, *part.window_starts)]
        end += len(part.token_ids)
    roles = (*own.roles, *[WORKER] * (len(starts) - len(own.window_starts)))
    return replace(
        own,
        token_ids=tuple(chain(own.token_ids, *(part.token_ids for part in windows))),
        mask=tuple(chain(own.mask, *(part.mask for part in windows))),
        logprobs=tuple(chain(own.logprobs, *(part.logprobs for part in windows))),
        window_starts=tuple(starts),
        window_roles=roles if windows else (),
        delegated=tuple(
            Delegated(part.messages, tuple(one.now.schemas), part.stop_reason, part.turns)
            for one, part in zip(delegated, parts, strict=True)
        ),
    )
