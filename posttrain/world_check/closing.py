"""What an episode must give back when it is over: its world is closed, and no process, thread or
socket of it stays."""

import gc
import threading
import time
from collections.abc import Sequence

import psutil

from posttrain.types import Task
from posttrain.world_check.findings import Broken, NotTried
from posttrain.world_check.policies import Part, play
from posttrain.world_check.recorder import Recorder, WatchedDomain
from posttrain.worlds.protocol import Domain

NUM_EPISODES = 8
WAIT_S = 3.0  # for what ends by itself after close


def close_holds(domain: Domain, tasks: Sequence[Task], watch: Recorder) -> None:
    """After every episode so far, and of a world where nothing was begun."""
    if "close" not in watch.has:
        raise NotTried("the world has no close")
    watched = WatchedDomain(domain, watch)
    for task in tasks[:1]:
        play(watched, [Part(task, lambda: lambda _: None)])
    if problem := watch.first("close"):
        raise Broken(f"close of {problem.task_id} {problem.text}; let it end quietly, also where nothing was opened")


def leaves_nothing(domain: Domain, part: Part | None) -> None:
    """What is open before and after some episodes, counted when all was played before."""
    if part is None:
        raise NotTried("no episode could be played")
    before = _open()
    play(domain, [part] * NUM_EPISODES)
    end = time.monotonic() + WAIT_S
    while (left := _more(before, _open())) and time.monotonic() < end:
        gc.collect()
        time.sleep(0.05)
    if left:
        kind, number = next(iter(left.items()))
        raise Broken(
            f"{NUM_EPISODES} episodes of {part.task.task_id} left {number} {kind} open; "
            "end them in the world's `async def close`"
        )


def _open() -> dict[str, int]:
    process = psutil.Process()
    return {
        "processes": len(process.children(recursive=True)),
        "threads": threading.active_count(),
        "sockets": len(process.net_connections(kind="all")),
        "files": process.num_fds() if hasattr(process, "num_fds") else 0,
    }


def _more(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    """A file or thread more may be a library's own; one for every other episode is not."""
    return {kind: after[kind] - before[kind] for kind in before if after[kind] - before[kind] >= NUM_EPISODES // 2}
