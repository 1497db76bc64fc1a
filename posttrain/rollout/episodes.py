"""How an episode is played: one coroutine each, reply → calls → results → reply, until somebody ends it.

Three kinds of failure have three fates. What the agent did wrong (unknown tool, bad arguments) is a tool message that it reads. A limit ends the
episode and is recorded as its `stop_reason`. Any other exception of a tool or a world is our bug: all episodes stop and it is raised.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace

from posttrain.params import AgentParams
from posttrain.rollout.policy import Episode, Policy, Reply
from posttrain.types import Message, StopReason, Task, ToolCall, Trajectory
from posttrain.worlds.protocol import Domain, World
from posttrain.worlds.tools import ToolError, error_text


def play_episodes(
    policy: Policy,
    tasks: Sequence[Task],
    *,
    domain: Domain,
    limits: AgentParams,
    seeds: Sequence[int],
    progress: Callable[[int, int], None] | None = None,
) -> list[Trajectory]:
    """Play `tasks[i]` with `seeds[i]` for every i, all at once; the trajectories come in the order of the tasks.

    A task may stand several times (a group); its plays differ by their seeds. `progress(done, total)` is called as episodes end. Raises ValueError
    where the two lengths differ. Not to be called from a running event loop.
    """
    if len(tasks) != len(seeds):
        raise ValueError(f"{len(tasks)} tasks but {len(seeds)} seeds; every episode has its own")
    num_done = 0

    async def play_one(index: int) -> Trajectory:
        nonlocal num_done
        trajectory = await _play(policy, tasks[index], domain=domain, limits=limits, seed=seeds[index], episode_id=f"{tasks[index].task_id}/{index}")
        num_done += 1
        if progress:
            progress(num_done, len(tasks))
        return trajectory

    return asyncio.run(_all_or_nothing([play_one(index) for index in range(len(tasks))]))


async def _all_or_nothing(plays: Sequence[Coroutine[object, object, Trajectory]]) -> list[Trajectory]:
    """As asyncio.TaskGroup, but the first failure is raised as itself: its type carries the exit code."""
    running = [asyncio.create_task(play) for play in plays]
    try:
        return await asyncio.gather(*running)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _play(policy: Policy, task: Task, *, domain: Domain, limits: AgentParams, seed: int, episode_id: str) -> Trajectory:
    world = domain.open(task)
    episode = Episode(episode_id, task, world.tools(), seed, limits, list(task.messages))
    stop: StopReason | None = None
    num_turns = 0
    policy_version = 0
    try:
        while stop is None:
            reply = await policy.reply(episode)
            num_turns += 1
            if num_turns == 1:
                policy_version = reply.policy_version
            ended = _take_turn(episode, reply, world)
            stop = reply.stop or ended or (StopReason.TURN_LIMIT if num_turns == limits.max_turns else None)
    finally:
        policy.release(episode)
    return Trajectory(
        task_id=task.task_id,
        messages=tuple(episode.messages),
        stop_reason=stop,
        seed=seed,
        policy_version=policy_version,
        token_ids=tuple(episode.token_ids),
        mask=tuple(episode.mask),
        logprobs=tuple(episode.logprobs),
    )


def _take_turn(episode: Episode, reply: Reply, world: World) -> StopReason | None:
    """Record the reply, run its calls in order, or let the user answer. Every call is answered, also in the last turn, so that records are paired."""
    episode.token_ids += [*reply.context_ids, *reply.token_ids]
    episode.mask += [0] * len(reply.context_ids) + [1] * len(reply.token_ids)
    episode.logprobs += [0.0] * len(reply.context_ids) + list(reply.logprobs)
    if reply.message is None:
        return None
    message = _with_call_ids(reply.message, episode.messages)
    episode.messages.append(message)
    if message.tool_calls:
        episode.messages += [Message("tool", _run_call(episode, call), tool_call_id=call.id) for call in message.tool_calls]
        return None
    if reply.stop is not None:
        return None
    answer = world.user_reply(message)
    if answer is None:
        return StopReason.DONE
    episode.messages.append(Message("user", answer))
    return None


def _with_call_ids(message: Message, before: Sequence[Message]) -> Message:
    """Calls are numbered through the episode: `call_1`, `call_2`. Models do not write ids, and a parser sees one message only."""
    if not message.tool_calls:
        return message
    start = 1 + sum(len(earlier.tool_calls) for earlier in before)
    return replace(message, tool_calls=tuple(replace(call, id=f"call_{start + index}") for index, call in enumerate(message.tool_calls)))


def _run_call(episode: Episode, call: ToolCall) -> str:
    """What the agent reads; its own mistakes are errors in JSON, any other exception is ours and leaves."""
    tool = episode.tools.get(call.name)
    try:
        if tool is not None:
            return tool.call(call.arguments)
        raise ToolError(f"no tool {call.name!r} is offered" if call.name else "the call is not a JSON object with name and arguments")
    except ToolError as error:
        return error_text(error)
