"""Runs many episodes at once, one coroutine each.

The agent's mistake is a tool message; a limit ends the episode as its `stop_reason`. An episode
whose engine, tool or program broke is aborted: it is run once more, then recorded as aborted, and
more than `agent.max_aborted_frac` of them is one error. Any other exception is our bug: all stop
and it is raised.
"""

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path

from posttrain.data.schemas import TrajectoryRow, trajectory_columns, trajectory_from_columns, trajectory_row
from posttrain.rollout.agent_loops import AgentFailed, AgentLoop, ToolFailed, load_agent_loop
from posttrain.rollout.engines.protocol import EngineFailed
from posttrain.rollout.episode import Episode
from posttrain.rollout.params import AgentParams
from posttrain.rollout.policy import Policy, expert_policy
from posttrain.runtime.exits import ConfigurationError, Interrupted
from posttrain.runtime.limits import MAX_FAILURE_CHARS, clip
from posttrain.types import StopReason, Task, Trajectory
from posttrain.worlds.protocol import ClosableWorld, Domain, ExpertDomain, WorldFailed

NUM_TRIES = 2  # of an aborted episode
MAX_OPEN = 1024  # episodes that have begun and not ended: bounds the worlds in memory
_STOP_OF: Mapping[type[Exception], StopReason] = {
    EngineFailed: StopReason.ENGINE_LOST,
    ToolFailed: StopReason.TOOL_FAILED,
    WorldFailed: StopReason.TOOL_FAILED,
    AgentFailed: StopReason.AGENT_FAILED,
}


def run_episodes(
    policy: Policy,
    tasks: Sequence[Task],
    *,
    domain: Domain,
    limits: AgentParams,
    seeds: Sequence[int],
    progress: Callable[[int, int], None] | None = None,
    on_end: Callable[[int, Trajectory], None] | None = None,
) -> list[Trajectory]:
    """`run_beside` for who has no running event loop."""
    played = run_beside(policy, tasks, domain=domain, limits=limits, seeds=seeds, progress=progress, on_end=on_end)
    return asyncio.run(played)


async def run_beside(
    policy: Policy,
    tasks: Sequence[Task],
    *,
    domain: Domain,
    limits: AgentParams,
    seeds: Sequence[int],
    progress: Callable[[int, int], None] | None = None,
    on_end: Callable[[int, Trajectory], None] | None = None,
    name: str = "",
) -> list[Trajectory]:
    """Run one episode of `tasks[i]` with `seeds[i]` for every i, all at once, in that order.

    `progress(done, total)` is called as episodes end, `on_end(i, trajectory)` for those that are
    not aborted. Raises Interrupted where too many were. Where others are played by the same engine,
    `name` tells their ids apart.
    """
    if len(tasks) != len(seeds):
        raise ValueError(f"{len(tasks)} tasks but {len(seeds)} seeds; every episode has its own")
    loops = {name: load_agent_loop(name) for name in {task.agent_name for task in tasks}}
    trajectories: dict[int, Trajectory] = {}
    aborted: list[Trajectory] = []
    indices = iter(range(len(tasks)))

    async def run_one(index: int) -> None:
        task = tasks[index]
        for num_try in range(NUM_TRIES):
            # Another id: engines and policies keep state by it, and the second try begins anew.
            episode_id = f"{name}{task.task_id}/{index}" + "/again" * num_try
            episode = Episode(episode_id, task, domain.open(task), seeds[index], limits)
            trajectories[index] = await run_episode(episode, policy, loops[task.agent_name])
            if not trajectories[index].is_aborted:
                if on_end:
                    on_end(index, trajectories[index])
                break
        else:
            aborted.append(trajectories[index])
            refuse_many_aborted(aborted, len(tasks), limits)
        if progress:
            progress(len(trajectories), len(tasks))

    async def run_next() -> None:
        for index in indices:
            await run_one(index)

    # One iterator shared by all coroutines: each takes the next index when its episode has ended.
    await _all_or_nothing([run_next() for _ in range(min(MAX_OPEN, len(tasks)))])
    return [trajectories[index] for index in range(len(tasks))]


def demonstrate(
    domain: ExpertDomain,
    tasks: Sequence[Task],
    *,
    limits: AgentParams,
    seed: int,
    is_flawless: bool,
    reasoning_frac: float,
    progress: Callable[[int, int], None] | None = None,
) -> list[TrajectoryRow]:
    """Episodes of the world's scripted expert, one row per task in their order. All tasks share one
    seed: the expert draws from seed and task together."""
    expert = expert_policy(domain, is_flawless=is_flawless, reasoning_frac=reasoning_frac)
    seeds = [seed] * len(tasks)
    trajectories = run_episodes(expert, tasks, domain=domain, limits=limits, seeds=seeds, progress=progress)
    return [trajectory_row(one, task, domain.tools) for one, task in zip(trajectories, tasks, strict=True)]


def resume_episodes(
    policy: Policy,
    tasks: Sequence[Task],
    file: Path,
    *,
    domain: Domain,
    limits: AgentParams,
    seeds: Sequence[int],
    progress: Callable[[int, int], None] | None = None,
) -> list[Trajectory]:
    """`run_episodes` for a policy that costs money (an endpoint) and has no tokens: each episode is
    appended to `file` as it ends, and not run again. Run again are aborted episodes, lines that
    cannot be read (the last one, after a kill), and those of another order of tasks or seeds."""
    file.parent.mkdir(parents=True, exist_ok=True)
    found = _read_episodes(file, tasks, seeds)
    missing = [index for index in range(len(tasks)) if index not in found]
    with file.open("ab") as lines:

        def append(place: int, trajectory: Trajectory) -> None:
            text = json.dumps({"index": missing[place], **trajectory_columns(trajectory)}, ensure_ascii=False)
            # half of a surrogate pair becomes JSON's escape of it
            lines.write(text.encode("utf-8", "backslashreplace") + b"\n")
            lines.flush()

        run = run_episodes(
            policy,
            [tasks[index] for index in missing],
            domain=domain,
            limits=limits,
            seeds=[seeds[index] for index in missing],
            progress=(lambda done, _: progress(len(found) + done, len(tasks))) if progress else None,
            on_end=append,
        )
    by_index = found | dict(zip(missing, run, strict=True))
    return [by_index[index] for index in range(len(tasks))]


def _read_episodes(file: Path, tasks: Sequence[Task], seeds: Sequence[int]) -> dict[int, Trajectory]:
    """Read the episodes of these tasks and seeds by index; a line that is cut off is left out."""
    try:
        content = file.read_bytes() if file.exists() else b""
    except OSError as error:
        raise ConfigurationError(
            f"{file} holds earlier episodes and cannot be read ({error.strerror}): move it away and run again"
        ) from error
    if content and not content.endswith(b"\n"):  # a kill cut the last line off: no next one belongs to it
        file.write_bytes(content + b"\n")
    found = {}
    for line in content.splitlines():
        try:
            record = json.loads(line)
            index, trajectory = int(record["index"]), trajectory_from_columns(record)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            continue
        if index < len(tasks) and (trajectory.task_id, trajectory.seed) == (tasks[index].task_id, seeds[index]):
            found[index] = trajectory
    return found


async def _all_or_nothing(coroutines: Sequence[Coroutine[object, object, None]]) -> None:
    """Run coroutines together; the first failure cancels the others and is raised as itself, not in
    asyncio.TaskGroup's ExceptionGroup: its type carries the exit code."""
    running = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        await asyncio.gather(*running)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def run_episode(episode: Episode, policy: Policy, loop: AgentLoop) -> Trajectory:
    """The world's opening messages, the agent loop, the world's grade."""
    try:
        await episode.open()
        return await episode.graded(await _run_loop(episode, policy, loop))
    except tuple(_STOP_OF) as error:
        return episode.trajectory(_STOP_OF[type(error)], failure=clip(str(error), MAX_FAILURE_CHARS))
    finally:
        policy.release(episode)
        if isinstance(episode.world, ClosableWorld):
            await episode.world.close()


async def _run_loop(episode: Episode, policy: Policy, loop: AgentLoop) -> Trajectory:
    """Run the agent loop under the time limit, which begins with the agent's first message: waiting
    for a place in the batch costs no time."""
    try:
        async with asyncio.timeout(None) as clock:
            episode.on_first_reply = lambda: clock.reschedule(
                asyncio.get_running_loop().time() + episode.limits.max_seconds
            )
            return episode.trajectory(await loop(episode, policy))
    except TimeoutError:
        if not clock.expired():
            raise
        return episode.trajectory(StopReason.TIME_LIMIT)


def refuse_many_aborted(aborted: Sequence[Trajectory], num_episodes: int, limits: AgentParams) -> None:
    """Raises Interrupted where more than `agent.max_aborted_frac` of the episodes were aborted."""
    if len(aborted) > limits.max_aborted_frac * num_episodes:
        raise Interrupted(
            f"{len(aborted)} of {num_episodes} episodes were aborted though each was run {NUM_TRIES} times, "
            f"and agent.max_aborted_frac is {limits.max_aborted_frac:g}: what is left would not be the agent's doing. "
            f"The first ended as {aborted[0].stop_reason}: {aborted[0].failure}"
        )
