"""Agent loops: coroutines that run one episode, turn by turn, chosen by the task's `agent_name`.

A loop asks the policy for a message, runs its tool calls, and returns the reason of the end.
EngineFailed, ToolFailed, WorldFailed and AgentFailed abort the episode; any other exception is our
bug.

The calls of one message run all at once, each with a time limit and retries. An instant tool only
computes: it is called in place and in order, because with a thread the clock would decide what an
engine batches. Any other may wait: a coroutine is awaited, a plain function runs in a daemon
thread, which is left behind where it hangs. Results and errors have keys redacted and are cut at
`agent.max_result_chars`.
"""

import asyncio
import contextlib
import inspect
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from posttrain.rollout.episode import Episode
from posttrain.rollout.params import AgentParams
from posttrain.rollout.policy import Policy
from posttrain.runtime.exits import ConfigurationError
from posttrain.runtime.import_by_name import load_named
from posttrain.runtime.limits import clip, reason
from posttrain.types import JsonValue, Message, StopReason, ToolCall, ToolOutcome, ToolRun
from posttrain.worlds.made_calls import report_of
from posttrain.worlds.protocol import Delegation
from posttrain.worlds.tools import Tool, ToolError, error_text, result_text

T = TypeVar("T")
AgentLoop = Callable[[Episode, Policy], Awaitable[StopReason]]
Work = Callable[[Delegation], Awaitable[JsonValue]]  # has it done, and gives the result


class AgentFailed(Exception):
    """The agent's own program raised. The episode is aborted."""


async def tools(episode: Episode, policy: Policy) -> StopReason:
    """ReAct (arXiv 2210.03629): a message with calls is answered by their results, one without by
    the user; no answer is the end. Calls of the last turn are answered too: records are paired.
    Work that a tool delegates is done by the same loop in a conversation of its own."""
    work = partial(_work, episode, policy)
    for _ in range(episode.limits.max_turns):
        reply = await policy.reply(episode)
        message = episode.add_reply(reply)
        if message is not None and message.tool_calls:
            results = await run_calls(message.tool_calls, episode.tools, episode.limits, work)
            episode.add_results(results)
            if any(run.outcome == "ok" and episode.tools[run.name].ends_episode for _, run in results):
                return StopReason.STOP_TOOL
            if episode.is_over():
                return StopReason.WORLD_OVER
        elif message is not None and reply.stop is None:
            answer = await episode.user_reply(message)
            if answer is None:
                return StopReason.WORLD_OVER if episode.is_over() else StopReason.DONE
            episode.messages.append(Message("user", answer))
        if reply.stop is not None:
            return reply.stop
    return StopReason.TURN_LIMIT


async def _work(episode: Episode, policy: Policy, given: Delegation) -> JsonValue:
    own = episode.delegate(given)
    try:
        own.stop = await tools(own, policy)
    finally:
        policy.release(own)
    return given.report(report_of(own.messages))


def load_agent_loop(name: str) -> AgentLoop:
    """`tools`, or a loop of your own as `module:function`. Raises ConfigurationError."""
    if name == "tools":
        return tools
    if ":" not in name:
        raise ConfigurationError(f"a task's agent_name is {name!r}: it is tools or a loop of your own, module:function")
    loop: AgentLoop = load_named(name, knob="a task's agent_name is")
    return loop


class ToolFailed(Exception):
    """A tool raised something else than ToolError at every try. The episode is aborted."""


async def run_calls(
    calls: Sequence[ToolCall], tools: Mapping[str, Tool], limits: AgentParams, work: Work | None = None
) -> list[tuple[str, ToolRun]]:
    """Text for the agent and how the call ended, for each call in order. Raises ToolFailed, also
    where a tool delegates and there is no `work` to have it done."""
    if all(call.name not in tools or tools[call.name].is_instant for call in calls):
        return [await _run(call, tools, limits, work) for call in calls]
    # A call that fails for good cancels the others: the episode is aborted.
    running = [asyncio.create_task(_run(call, tools, limits, work)) for call in calls]
    try:
        return await asyncio.gather(*running)
    finally:
        for task in running:
            task.cancel()


async def in_thread(function: Callable[[], T]) -> T:
    """Run a plain function in a daemon thread of its own; a cancelled caller leaves it behind."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(method: Callable[[Any], None], outcome: Any) -> None:
        if not future.done():  # else cancelled meanwhile
            method(outcome)

    def run() -> None:
        try:
            method, outcome = future.set_result, function()
        except Exception as error:
            method, outcome = future.set_exception, error  # type: ignore[assignment]
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, method, outcome)

    threading.Thread(target=run, daemon=True).start()
    return await future


async def _run(
    call: ToolCall, tools: Mapping[str, Tool], limits: AgentParams, work: Work | None
) -> tuple[str, ToolRun]:
    start = time.perf_counter()
    tool = tools.get(call.name)
    num_attempts = 1
    content: str | Delegation
    outcome: ToolOutcome
    while True:
        try:
            if tool is None:
                raise ToolError(
                    f"no tool {call.name!r} is offered"
                    if call.name
                    else "the call is not a JSON object with name and arguments"
                )
            content, outcome = await _result(tool, call.arguments, limits.tool_timeout_s), "ok"
        except ToolError as error:
            content, outcome = error_text(error), "error"
        except TimeoutError:
            # A retry may do harm (an order placed twice): agent.tool_retries 0 turns it off.
            if num_attempts <= limits.tool_retries:
                num_attempts += 1
                continue
            late = ToolError(f"{call.name} did not answer within {limits.tool_timeout_s:g} s")
            content, outcome = error_text(late), "timeout"
        except Exception as error:
            if num_attempts <= limits.tool_retries:
                num_attempts += 1
                continue
            raise ToolFailed(
                f"{call.name}({clip(call.arguments, 200)}) raised {type(error).__name__}: {reason(error)}"
            ) from error
        if isinstance(content, Delegation):
            if work is None:
                raise ToolFailed(
                    f"{call.name} delegates, which the agent loop tools alone can do: set agent.worker null"
                )
            content = result_text(await work(content))
        run = ToolRun(call.id, call.name, outcome, num_attempts, time.perf_counter() - start)
        return clip(content, limits.max_result_chars), run


async def _result(tool: Tool, arguments: str, timeout_s: float) -> str | Delegation:
    if tool.is_instant:
        result = tool.function(**tool.parse(arguments))
        return result if isinstance(result, Delegation) else result_text(result)
    given = tool.parse(arguments)
    async with asyncio.timeout(timeout_s):
        if inspect.iscoroutinefunction(tool.function):
            return result_text(await tool.function(**given))
        return await in_thread(lambda: result_text(tool.function(**given)))
