"""Serves an agent that is a program of its own: writes its messages, runs its calls, and ends its
episode.

Such a program keeps the conversation and sends all of it with each request. It may catch errors,
try again, or never stop, so the reason of the end is kept here: the first refused request ends the
episode, and the program is cancelled.
"""

import asyncio
import traceback
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from posttrain.rollout.agent_loops import AgentFailed, ToolFailed, run_calls
from posttrain.rollout.conversation import bounded, is_same, is_same_call
from posttrain.rollout.episode import Episode
from posttrain.rollout.policy import Policy
from posttrain.runtime.limits import reason
from posttrain.types import Message, StopReason, ToolCall

_GRACE_S = 5.0  # for a cancelled program to clean up; then it is left behind


class EpisodeOver(Exception):
    """Raised in a program that goes on when its episode is over."""


@dataclass(frozen=True, slots=True)
class Served:
    """A message of `num_written` tokens behind `num_read`; `is_cut`: it ran into a limit."""

    message: Message
    num_read: int
    num_written: int
    is_cut: bool

    @property
    def finish(self) -> Literal["stop", "length", "tool_calls"]:
        """OpenAI's `finish_reason`."""
        if self.is_cut:
            return "length"
        return "tool_calls" if self.message.tool_calls else "stop"


class AgentHost:
    """Serves one episode to its program until `over` has the stop reason or an error."""

    def __init__(self, episode: Episode, policy: Policy) -> None:
        self.episode = episode
        self.over: asyncio.Future[StopReason] = asyncio.get_running_loop().create_future()
        self._policy = policy
        self._clock = self.over.get_loop().call_later(episode.limits.max_seconds, self.end, StopReason.TIME_LIMIT)
        self._turn = asyncio.Lock()  # a program that asks for two messages at once gets one after the other
        self._writing: asyncio.Task[Any] | None = None
        self._cut: StopReason | None = None
        self._results: dict[str, str] = {}  # of the last message's calls, by call id
        self._running: set[str] = set()

    def end(self, stop: StopReason) -> None:
        if not self.over.done():
            self.over.set_result(stop)

    async def reply(self, messages: Sequence[Message], schemas: Sequence[Mapping[str, Any]]) -> Served:
        """The agent's message after `messages`, with the tools of `schemas` offered; the same
        message again for a repeated request. Raises EpisodeOver. Cancelled, it records nothing."""
        async with self._turn:
            self._refuse_if_over()
            self._clock.cancel()
            # The episode's own time limit begins with its first message (`Episode.on_first_reply`).
            episode, self._writing = self.episode, asyncio.current_task()
            messages = self._without_keys(messages)
            try:
                if not self._was_just_asked(messages, schemas):
                    await self._write(messages, schemas)
            except EpisodeOver:
                raise
            except Exception as error:
                raise self._fail(error) from error
            finally:
                self._writing = None
            num_written = episode.turns[-1].num_written
            return Served(
                episode.messages[-1], len(episode.now.token_ids) - num_written, num_written, self._cut is not None
            )

    async def run_call(self, name: str, arguments: str) -> str:
        """Run a call of a tool; returns the text for the agent. Raises EpisodeOver."""
        self._refuse_if_over()
        call = self._made(ToolCall("", name, arguments))
        self._running.add(call.id)
        try:
            [(content, run)] = await run_calls([call], self.episode.tools, self.episode.limits)
        except ToolFailed as error:
            raise self._fail(error) from error
        finally:
            self._running.discard(call.id)
        if self.episode.turns:
            self.episode.add_runs([run])
        self._results[call.id] = content
        if run.outcome == "ok" and self.episode.tools[name].ends_episode:
            self.end(StopReason.STOP_TOOL)
        return content

    async def close(self) -> None:
        """Stop serving and writing, and record the results of the last calls."""
        self._clock.cancel()
        if self.over.done():
            # Marks the exception as retrieved, or asyncio would print it at garbage collection.
            self.over.exception()
        self.end(StopReason.DONE)
        if self._writing is not None:
            await stop_task(self._writing)
        for call in self.episode.messages[-1].tool_calls:
            if call.id in self._results:
                self.episode.messages.append(Message("tool", self._results[call.id], tool_call_id=call.id))

    def history(self) -> list[Message]:
        """The task's opening messages and all since the agent's first: the conversation as a user
        sees it, whatever the program opens with."""
        now = self.episode.now
        return [*self.episode.task.messages, *(now.messages[now.written()[0] :] if now.turns else ())]

    async def run_until_over(self, program: Coroutine[Any, Any, object]) -> StopReason | None:
        """Run the program until it returns (None, or why its last message is the last) or the
        episode is over. Raises AgentFailed for its exception, or the episode's error."""
        running: asyncio.Task[Any] = asyncio.create_task(program)
        try:
            await asyncio.wait([running, self.over], return_when=asyncio.FIRST_COMPLETED)
            if self.over.done():
                return self.over.result()
            if running.cancelled():
                raise AgentFailed("the agent's program cancelled itself")
            if error := running.exception():
                where = "".join(
                    f" (in {frame.name}, line {frame.lineno})"
                    for frame in traceback.extract_tb(error.__traceback__)[-1:]
                )
                raise AgentFailed(f"{type(error).__name__}: {reason(error)}{where}") from error
            return self._cut
        finally:
            await stop_task(running)

    async def _write(self, messages: Sequence[Message], schemas: Sequence[Mapping[str, Any]]) -> None:
        episode = self.episode
        stop = self._cut or (StopReason.TURN_LIMIT if episode.num_replies >= episode.limits.max_turns else None)
        # Results of the last calls belong to the record, also where no message follows.
        if stop is None or episode.is_continued_by(messages, schemas):
            episode.go_on_from(messages, schemas)
        if stop is None:
            reply = await self._policy.reply(episode)
            # Results of earlier calls stand in the messages that the program just sent.
            self._results.clear()
            self._cut = reply.stop
            stop = reply.stop if episode.add_reply(reply) is None else None
        if stop is not None:
            self.end(stop)
            raise EpisodeOver(f"the episode is over: {stop}")

    def _without_keys(self, messages: Sequence[Message]) -> list[Message]:
        """Redact and cut the messages that the program added, not those of the policy."""
        known = self.episode.now.messages
        return [
            message
            if index < len(known) and is_same(known[index], message)
            else self.episode.own_words(message) or bounded(message)
            for index, message in enumerate(messages)
        ]

    def _was_just_asked(self, messages: Sequence[Message], schemas: Sequence[Mapping[str, Any]]) -> bool:
        now = self.episode.now
        return bool(now.turns and not now.unread()) and len(messages) == len(now.messages) - 1 == now.num_same(
            messages, schemas
        )

    def _made(self, call: ToolCall) -> ToolCall:
        """The call of the agent's last message; one that the program makes itself has no id."""
        now = self.episode.now
        made = now.messages[now.written()[-1]].tool_calls if now.turns else ()
        # Equal calls of one message are told apart by those that have been run already.
        is_taken = self._running | set(self._results)
        return next((one for one in made if one.id not in is_taken and is_same_call(one, call)), call)

    def _fail(self, error: Exception) -> EpisodeOver:
        """End the episode with this error, whatever the program makes of the returned one."""
        if not self.over.done():
            self.over.set_exception(error)
        return EpisodeOver(f"the episode is over: {type(error).__name__}: {reason(error)}")

    def _refuse_if_over(self) -> None:
        if self.over.done():
            raise EpisodeOver("the episode is over")


async def stop_task(task: "asyncio.Task[Any]") -> None:
    """Cancel a task and wait some seconds until it has cleaned up. Its exception is dropped."""
    task.cancel()
    # Not awaited directly: a program may swallow the cancellation.
    await asyncio.wait({task}, timeout=_GRACE_S)
    if task.done() and not task.cancelled():
        task.exception()


Program = Callable[[AgentHost, Sequence[Message]], Coroutine[Any, Any, object]]


async def run_program(episode: Episode, policy: Policy, program: Program) -> StopReason:
    """Run an episode: `program(host, conversation)` answers the user each time the user replies."""
    host = AgentHost(episode, policy)
    try:
        while True:
            num_replies = episode.num_replies
            stop = await host.run_until_over(program(host, host.history()))
            message = episode.messages[-1]
            if (
                stop is not None
                or episode.num_replies == num_replies
                or message.role != "assistant"
                or message.tool_calls
            ):
                return stop or StopReason.DONE
            answer = await episode.user_reply(message)
            if answer is None:
                return StopReason.WORLD_OVER if episode.is_over() else StopReason.DONE
            episode.messages.append(Message("user", answer))
    finally:
        await host.close()
