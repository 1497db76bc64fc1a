"""Rules about replayed, interleaved and regenerated episodes, and what they leave open."""

import asyncio
import gc
import threading
import time
from collections.abc import Sequence
from functools import partial

import psutil

from posttrain.types import Message, Split, Task, Trajectory
from posttrain.world_check.findings import Broken, NotTried
from posttrain.world_check.policies import Plan, TaskEpisodes, plan_call_of_every_tool, plan_expert, play, replaying
from posttrain.worlds.protocol import ClosableWorld, Domain, ExpertDomain, RegeneratingDomain, World

NUM_AT_ONCE = 8
NUM_SEEDS = 4  # of regenerated tasks, one of which must have another text
WAIT_S = 3.0  # for what ends by itself after close


def plan_probes(domain: Domain, episodes: Sequence[TaskEpisodes]) -> list[tuple[Plan, Plan]]:
    """Two episodes of each split's first task: the expert's or one with every tool, and another."""
    tasks: dict[Split, Task] = {}
    for one in episodes:
        if not any(trajectory.is_aborted for trajectory in one.by.values()):
            tasks.setdefault(one.task.split, one.task)
    probes = []
    for task in tasks.values():
        calls = plan_call_of_every_tool(domain, task)
        if isinstance(domain, ExpertDomain):
            probes.append((plan_expert(domain, task), calls))
        else:
            probes.append((calls, (task, partial(replaying, []))))
    if not probes:
        raise NotTried("no episode could be played")
    return probes


def same_episodes_again(domain: Domain, episodes: Sequence[TaskEpisodes]) -> None:
    """Alone; then eight times at once, beside another policy's episode of the same task."""
    for mine, other in plan_probes(domain, episodes):
        [alone] = play(domain, [mine])
        first, _, *others = play(domain, [mine, other, *[mine] * (NUM_AT_ONCE - 1)])
        for one in (first, *others):
            _compare(mine[0], alone, one)


def regenerated_tasks_are_alike(domain: Domain, tasks: Sequence[Task]) -> None:
    """Equal labels, template and split, another text, equal for equal seeds, and as solvable."""
    if not isinstance(domain, RegeneratingDomain):
        raise NotTried("the world has no regenerate")
    made = [_regenerated(domain, task) for task in tasks]
    if not isinstance(domain, ExpertDomain):
        return
    played = play(domain, [plan_expert(domain, task) for task in made])
    for task, gold in zip(made, played, strict=True):
        if not gold.is_strict_success:
            raise Broken(
                f"{task.task_id}, which was regenerated, is not solved by a flawless episode ({_verdict(gold)}); "
                "draw only what can be answered"
            )


def _regenerated(domain: RegeneratingDomain, task: Task) -> Task:
    made = [domain.regenerate(task, seed=seed) for seed in range(NUM_SEEDS)]
    for one in made:
        for name in ("labels", "template", "split"):
            given, wanted = getattr(one, name), getattr(task, name)
            if given != wanted:
                raise Broken(f"{task.task_id} regenerated has the {name} {given!r} and not {wanted!r}; keep it")
    if all(one.messages == task.messages for one in made):
        raise Broken(f"{task.task_id} regenerated says the same for {NUM_SEEDS} seeds; draw other entities by seed")
    if domain.regenerate(task, seed=0) != made[0]:
        raise Broken(f"{task.task_id} regenerated twice with one seed is two tasks; draw from task and seed alone")
    return made[0]


def close_ends_quietly(world: World) -> None:
    """`world` is one in which nothing was done."""
    if not isinstance(world, ClosableWorld):
        raise NotTried("the world has no close")
    asyncio.run(world.close())


def nothing_stays_open(domain: Domain, episodes: Sequence[TaskEpisodes]) -> None:
    """Counts what is open before and after eight episodes; earlier ones have warmed up every cache.
    A file or thread more may be a library's own; one for every other episode is not."""
    mine, _ = plan_probes(domain, episodes)[0]
    before = _num_open()
    play(domain, [mine] * NUM_AT_ONCE)
    end = time.monotonic() + WAIT_S
    while True:
        more = {kind: number - before[kind] for kind, number in _num_open().items()}
        left = {kind: number for kind, number in more.items() if number >= NUM_AT_ONCE // 2}
        if not left or time.monotonic() > end:
            break
        gc.collect()
        time.sleep(0.05)
    for kind, number in left.items():
        raise Broken(
            f"{NUM_AT_ONCE} episodes of {mine[0].task_id} left {number} {kind} open; "
            "end them in the world's `async def close`"
        )


def _num_open() -> dict[str, int]:
    process = psutil.Process()
    return {
        "processes": len(process.children(recursive=True)),
        "threads": threading.active_count(),
        "sockets": len(process.net_connections(kind="all")),
        "files": process.num_fds(),
    }


def _compare(task: Task, expected: Trajectory, found: Trajectory) -> None:
    if expected == found:
        return
    pairs = zip(expected.messages, found.messages, strict=False)
    differing = [(_words(one), _words(other)) for one, other in pairs if one != other]
    before, after = differing[0] if differing else (_verdict(expected), _verdict(found))
    raise Broken(
        f"{task.task_id} played again beside others is another episode ({before!r} became {after!r}); keep an "
        "episode's state in the world that open() makes, and draw from the task alone"
    )


def _words(message: Message) -> str:
    return (message.content or " ".join(f"{call.name}({call.arguments})" for call in message.tool_calls))[:60]


def _verdict(trajectory: Trajectory) -> str:
    if trajectory.outcome is None:
        return trajectory.failure[:80]
    scores = ", ".join(f"{name} {value:g}" for name, value in trajectory.outcome.scores.items())
    return f"{trajectory.outcome.failure or 'success'} of {len(trajectory.messages)} messages ({scores})"
