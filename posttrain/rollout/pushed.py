"""An episode whose messages come from outside: another program writes them, and our own loop runs
the calls, asks the user, keeps the limits and has the world grade."""

import asyncio
from dataclasses import replace

from posttrain.rollout.agent_loops import tools
from posttrain.rollout.episode import Episode, Reply
from posttrain.rollout.episodes import run_episode
from posttrain.rollout.params import AgentParams
from posttrain.types import Message, StopReason, Task, Trajectory
from posttrain.worlds.protocol import Domain


class PushedEpisode:
    """The loop's own policy, which waits for the next `push`. To be closed in any case."""

    def __init__(self, domain: Domain, task: Task, limits: AgentParams) -> None:
        self.task = task
        self.episode = Episode(task.task_id, task, domain.open(task), 0, limits)
        self._inbox: asyncio.Queue[Reply] = asyncio.Queue()
        self._is_asked = asyncio.Event()
        self._running: asyncio.Task[Trajectory] | None = None

    @property
    def trajectory(self) -> Trajectory | None:
        """The graded record, once the episode is over. Raises whatever is our own bug."""
        is_over = self._running is not None and self._running.done()
        return self._running.result() if is_over and self._running is not None else None

    async def begin(self) -> list[Message]:
        """The conversation up to the agent's first message, the world's opening included."""
        self._running = asyncio.create_task(run_episode(self.episode, self, tools))
        await self._wait()
        return list(self.episode.messages)

    async def push(self, message: Message | None, stop: StopReason | None = None) -> list[Message]:
        """The messages that answer the agent's. `stop` ends the episode behind its message, or
        without one; it is graded all the same."""
        num_before = len(self.episode.messages) + (message is not None)
        self._is_asked.clear()
        self._inbox.put_nowait(Reply(message, stop))
        await self._wait()
        return self.episode.messages[num_before:]

    async def reply(self, episode: Episode) -> Reply:
        del episode
        self._is_asked.set()
        given = await self._inbox.get()
        return replace(given, stop=given.stop or (StopReason.TOKEN_LIMIT if given.message is None else None))

    def release(self, episode: Episode) -> None:
        del episode

    async def close(self) -> None:
        """Ends an episode that nobody goes on with; the world is released."""
        if self._running is not None and not self._running.done():
            self._running.cancel()
            await asyncio.wait({self._running})

    async def _wait(self) -> None:
        assert self._running is not None, "an episode begins before messages are pushed"
        asked = asyncio.create_task(self._is_asked.wait())
        await asyncio.wait({asked, self._running}, return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
