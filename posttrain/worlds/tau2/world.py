"""One episode of a tau2 task: a database of its own on a shared server, and a user."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from posttrain.runtime.limits import MAX_REPLY_CHARS, clip
from posttrain.types import JsonValue, Message, Outcome, Task, Trajectory
from posttrain.worlds.protocol import WorldFailed
from posttrain.worlds.tau2.databases import Database, Databases
from posttrain.worlds.tau2.goals import goal_of
from posttrain.worlds.tau2.grade import grade
from posttrain.worlds.tau2.references import References
from posttrain.worlds.tau2.tools import bound
from posttrain.worlds.tau2.users import User, is_end
from posttrain.worlds.tools import Tool


class Tau2World:
    """The database is taken with the first call: an episode without one starts no server."""

    def __init__(
        self, task: Task, described: Mapping[str, Tool], *, databases: Databases, references: References, user: User
    ) -> None:
        self._task, self._goal, self._user = task, goal_of(task), user
        self._databases, self._references = databases, references
        self._tools = {name: bound(described[name], self._call) for name in task.tools}
        self._database: Database | None = None
        self._said: list[str] = []
        self._taking = asyncio.Lock()

    def tools(self) -> Mapping[str, Tool]:
        """The domain's, bound to this episode's database."""
        return self._tools

    async def opening(self) -> Sequence[Message]:
        """The user's first words."""
        words = clip(await self._user.speak(()), MAX_REPLY_CHARS)
        if not words.strip() or is_end(words):
            raise WorldFailed(f"the simulated user began with {clip(words, 200)!r}: there is no conversation to have")
        self._said.append(words)
        return [Message("user", words)]

    async def user_reply(self, message: Message) -> str | None:
        """The user's answer; None where the user ends the conversation."""
        words = clip(await self._user.speak((*self._said, message.content)), MAX_REPLY_CHARS)
        if not words.strip():
            raise WorldFailed("the simulated user said nothing")
        self._said += [message.content, words]
        return None if is_end(words) else words

    async def grade(self, trajectory: Trajectory) -> Outcome:
        """By tau2's rule."""
        left = self._database.digest() if self._database is not None else self._references.untouched
        is_right = left == await self._references.digest(self._task)
        return grade(trajectory, self._goal, is_database_right=is_right, write_tools=self._references.write_tools)

    async def close(self) -> None:
        """Give the database back."""
        database, self._database = self._database, None
        if database is not None:
            await self._databases.give_back(database)
        await self._user.close()

    async def _call(self, name: str, arguments: Mapping[str, Any]) -> JsonValue:
        async with self._taking:
            if self._database is None:
                self._database = await self._databases.take(self._task.task_id)
        return await self._database.call(name, arguments)
