"""Plays without a pause: groups of episodes begin and end while the policy trains, and go on with
new weights from one message to the next (AReaL, arXiv 2505.24298; PipelineRL, arXiv 2509.19128).

A gate is shut while weights change: messages that are being written are awaited, tools go on. So
each message has one version of the weights (`Turn.policy_version`), an episode may have several,
and importance weights correct for each token. The order in which groups end is the clock's: another
run learns from others.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

import torch

from posttrain.rollout.engines.protocol import Engine, GenerateRequest, Generation
from posttrain.types import ScoredEpisode, Task


class Gate:
    """Lets messages pass while it is open; of one event loop."""

    def __init__(self) -> None:
        self._is_open, self._is_idle, self._num_inside = asyncio.Event(), asyncio.Event(), 0
        self._is_open.set()
        self._is_idle.set()
        self._put_off: list[Callable[[], None]] = []

    @asynccontextmanager
    async def message(self) -> AsyncIterator[None]:
        """Context of one message's writing; waits while the gate is shut."""
        while not self._is_open.is_set():
            await self._is_open.wait()
        self._num_inside += 1
        self._is_idle.clear()
        try:
            yield
        finally:
            self._num_inside -= 1
            if not self._num_inside:
                self._is_idle.set()

    async def shut(self) -> None:
        """Let no message begin, and wait for those that are being written."""
        self._is_open.clear()
        await self._is_idle.wait()

    def open(self) -> None:
        for call in self._put_off:
            call()
        self._put_off.clear()
        self._is_open.set()

    def when_open(self, call: Callable[[], None]) -> None:
        """Call now, or when the gate is opened: meanwhile the engine is another thread's."""
        if self._is_open.is_set():
            call()
        else:
            self._put_off.append(call)


class GatedEngine:
    """An engine whose messages pass a gate."""

    def __init__(self, engine: Engine, gate: Gate) -> None:
        self._engine, self._gate = engine, gate

    @property
    def policy_version(self) -> int:
        return self._engine.policy_version

    async def generate(self, request: GenerateRequest) -> Generation:
        async with self._gate.message():
            return await self._engine.generate(request)

    def release(self, episode_id: str) -> None:
        self._gate.when_open(lambda: self._engine.release(episode_id))

    def refresh_weights(self) -> None:
        self._engine.refresh_weights()

    def sleep(self) -> None:
        self._engine.sleep()


class AsynchronousSource(Protocol):
    """Plays and scores groups, several at once."""

    def refresh(self) -> None:
        """Copy the model's current weights; no message is being written."""
        ...

    async def play(self, tasks: Sequence[Task], seeds: Sequence[int], *, name: str, gate: Gate) -> list[ScoredEpisode]:
        """One episode of `tasks[i]` under `seeds[i]` for every i, while others are played under
        other names; each message passes the gate."""
        ...


@dataclass(slots=True)
class GroupInPlay:
    """A group by the number under which it was begun, and the last training step that may learn
    from it; without episodes while it is played."""

    number: int
    deadline: int
    episodes: list[ScoredEpisode] | None = None


class AsynchronousRollouts:
    """Groups in play and groups that are over, in the order in which they ended."""

    def __init__(self, source: AsynchronousSource) -> None:
        self._source, self._gate = source, Gate()
        self._loop = asyncio.new_event_loop()
        num_threads = torch.get_num_threads()  # each thread's own setting: another number gives other bits
        self._thread = threading.Thread(target=self._run, args=(num_threads,), name="play", daemon=True)
        self._changed = threading.Condition()
        self._in_play: dict[int, GroupInPlay] = {}
        self._over: list[GroupInPlay] = []
        self._error: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._await(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def begin(self, group: GroupInPlay, tasks: Sequence[Task], seeds: Sequence[int]) -> None:
        self._in_play[group.number] = group
        asyncio.run_coroutine_threadsafe(self._play(group, tasks, seeds), self._loop)

    def take(self, count: int, *, step: int) -> list[GroupInPlay]:
        """The groups that training step `step` learns from: those that ended first, but for whom
        another would miss its deadline. Raises the error of a group that failed."""
        while True:
            with self._changed:
                if self._error is not None:
                    raise self._error
                taken = first_in_time(self._over, [*self._in_play.values()], count, step=step)
                if len(taken) == count:
                    numbers = {one.number for one in taken}
                    self._over = [one for one in self._over if one.number not in numbers]
                    return taken
                self._changed.wait()

    def pause(self) -> None:
        """Wait until no message is being written, and let none begin; tools go on."""
        self._await(self._gate.shut())

    def resume(self) -> None:
        """Go on with the model's weights as they are now."""
        self._await(self._refresh())

    async def _refresh(self) -> None:
        await self._gate.shut()
        self._source.refresh()
        self._gate.open()

    async def _play(self, group: GroupInPlay, tasks: Sequence[Task], seeds: Sequence[int]) -> None:
        error: BaseException | None = None
        try:
            group.episodes = await self._source.play(tasks, seeds, name=f"group {group.number}", gate=self._gate)
        except BaseException as raised:  # to be raised where it is waited for
            error = raised
        with self._changed:
            self._in_play.pop(group.number)
            self._over.append(group)
            self._error = self._error or error
            self._changed.notify_all()

    async def _end(self) -> None:
        others = [one for one in asyncio.all_tasks() if one is not asyncio.current_task()]
        for one in others:
            one.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def _await(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def _run(self, num_threads: int) -> None:
        torch.set_num_threads(num_threads)
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()


def first_in_time(
    over: Sequence[GroupInPlay], in_play: Sequence[GroupInPlay], count: int, *, step: int
) -> list[GroupInPlay]:
    """At most `count` groups of those that are `over`, the earlier first, such that all others can
    meet their deadlines with as many in each later step. Two a step, in step 5, of deadlines 7, 5,
    6 (over) and 6 (in play): the first and the second; of 6, 7 (over) and 5 (in play) the first,
    and the other place is kept for the last."""
    left, taken = Counter(max(one.deadline, step) for one in (*over, *in_play)), list[GroupInPlay]()

    def num_due() -> int:
        """How many must be taken now: for each later step those due by then, less what it and the
        steps before it have room for."""
        counts = ((last, sum(num for due, num in left.items() if due <= last)) for last in left)
        return max((num - (last - step) * count for last, num in counts), default=0)

    for one in over:
        due = max(one.deadline, step)
        left[due] -= 1
        if len(taken) < count and num_due() <= count - len(taken) - 1:
            taken.append(one)
        else:
            left[due] += 1
    return taken
