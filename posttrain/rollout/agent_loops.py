"""Agent loops: coroutines that run one episode, turn by turn, chosen by the task's `agent_name`.

A loop asks the policy for a message, runs its tool calls, and returns the reason of the end.
EngineFailed, ToolFailed, WorldFailed and AgentFailed abort the episode; any other exception is our
bug.
"""

from collections.abc import Awaitable, Callable

from posttrain.rollout.episode import Episode
from posttrain.rollout.policy import Policy
from posttrain.rollout.tool_calls import run_calls
from posttrain.runtime.exits import ConfigurationError
from posttrain.runtime.import_by_name import load_named
from posttrain.types import Message, StopReason

AgentLoop = Callable[[Episode, Policy], Awaitable[StopReason]]


class AgentFailed(Exception):
    """The agent's own program raised. The episode is aborted."""


async def tools(episode: Episode, policy: Policy) -> StopReason:
    """ReAct (arXiv 2210.03629): a message with calls is answered by their results, one without by
    the user; no answer is the end. Calls of the last turn are answered too: records are paired."""
    for _ in range(episode.limits.max_turns):
        reply = await policy.reply(episode)
        message = episode.add_reply(reply)
        if message is not None and message.tool_calls:
            results = await run_calls(message.tool_calls, episode.tools, episode.limits)
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


def load_agent_loop(name: str) -> AgentLoop:
    """`tools`, or a loop of your own as `module:function`. Raises ConfigurationError."""
    if name == "tools":
        return tools
    if ":" not in name:
        raise ConfigurationError(f"a task's agent_name is {name!r}: it is tools or a loop of your own, module:function")
    loop: AgentLoop = load_named(name, knob="a task's agent_name is")
    return loop
