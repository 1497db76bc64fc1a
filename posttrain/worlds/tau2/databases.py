"""Databases of episodes, kept by real MCP servers that several episodes share, and the digests that
the reference calls lead to.

A process of the airline's takes 50 MB and each database 9 MB more, so a process holds the databases
of some episodes, each under a `state_key` that one episode has at a time and that is reset before
its first call. A process starts when the others are full and ends with its last episode. The server
writes a database into a file after every call; at the end it is read there, because no tool shows
it."""

import asyncio
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from posttrain.types import JsonValue, Task
from posttrain.worlds.mcp import McpConnection, McpServer
from posttrain.worlds.protocol import WorldFailed
from posttrain.worlds.tau2.goals import goal_of
from posttrain.worlds.tau2.package import Tau2Package
from posttrain.worlds.tools import ToolError

EPISODES_PER_PROCESS = 16  # it answers one call at a time, in some 40 ms


@dataclass(slots=True)
class _Process:
    connection: McpConnection
    folder: Path
    free: list[int] = field(default_factory=lambda: list(range(EPISODES_PER_PROCESS))[::-1])
    is_gone: bool = False


class Databases:
    """The server processes of a domain, for each event loop its own, because a connection belongs
    to one."""

    def __init__(self, package: Tau2Package, *, domain: str, server: str) -> None:
        self._package, self.domain, self._module = package, domain, server
        self._processes: dict[asyncio.AbstractEventLoop, list[_Process]] = {}

    def server(self, folder: Path | None = None) -> McpServer:
        """A server that keeps its files in `folder`, and finds the package where this process
        did."""
        env = {"PYTHONPATH": os.pathsep.join((str(self._package.root), os.environ.get("PYTHONPATH", "")))}
        if folder is not None:
            env[f"{self._package.name.upper()}_STATE_DIR"] = str(folder)
        return McpServer(command=(sys.executable, "-m", self._module), env=env, start_timeout_s=60.0)

    def num_processes(self) -> int:
        """The processes of the running event loop, each with an episode at least."""
        return len(self._processes.get(asyncio.get_running_loop(), ()))

    async def take(self, task_id: str) -> "Database":
        """A database as the package has it, for one episode. Raises WorldFailed where the server
        does not give one."""
        processes = self._processes.setdefault(asyncio.get_running_loop(), [])
        process = next((one for one in processes if one.free and not one.is_gone), None)
        if process is None:
            folder = Path(tempfile.mkdtemp(prefix="posttrain-tau2-"))
            process = _Process(McpConnection(self.server(folder)), folder)
            processes.append(process)
        database = Database(self, process, process.free.pop())
        try:
            await database.call("reset_state", {"domain": self.domain, "task_id": task_id})
        except BaseException as error:
            await self.give_back(database)
            if isinstance(error, ConnectionError | ToolError):
                raise WorldFailed(f"the tau2 server gives no database: {error}") from error
            raise
        return database

    async def give_back(self, database: "Database") -> None:
        """Called when the episode is over; ends a process without episodes."""
        process = database.process
        process.free.append(database.slot)
        if len(process.free) == EPISODES_PER_PROCESS:
            processes = self._processes[asyncio.get_running_loop()]
            processes.remove(process)
            if not processes:
                del self._processes[asyncio.get_running_loop()]
            await process.connection.close()
            shutil.rmtree(process.folder, ignore_errors=True)


class Database:
    """The database of one episode, on a shared server; it must be given back."""

    def __init__(self, databases: Databases, process: _Process, slot: int) -> None:
        self.process, self.slot = process, slot
        self.key = f"tau2/{databases.domain}/episode/{slot}"

    async def call(self, name: str, arguments: Mapping[str, Any]) -> JsonValue:
        """The answer of a tool. Raises ToolError for a mistake in the call, ConnectionError where
        the server is gone, and its databases with it."""
        try:
            return await self.process.connection.call(name, {**arguments, "state_key": self.key})
        except ConnectionError:
            self.process.is_gone = True
            raise

    def digest(self) -> str:
        """The digest of the database as it stands. Raises WorldFailed where its file cannot be
        read."""
        path = self.process.folder / f"{hashlib.sha256(self.key.encode()).hexdigest()}.json"
        try:
            return digest(json.loads(path.read_text(encoding="utf-8"))["db"])
        except (OSError, ValueError, KeyError) as error:
            raise WorldFailed(f"the tau2 server kept no database that can be read: {error}") from error


class References:
    """The digest of each task's reference, found once by making its calls on the real server;
    `untouched` is that of a database that nobody wrote to."""

    def __init__(self, package: Tau2Package, databases: Databases) -> None:
        self._databases = databases
        self._digests: dict[str, str | None] = {}
        self.write_tools = package.write_tools
        self.untouched = digest(dict(package.database))

    async def digest(self, task: Task) -> str | None:
        """The digest that the database must have at the end; None, which nothing equals, where a
        reference call that writes is refused: tau2 takes no verdict from half a reference. Raises
        WorldFailed where the server is gone."""
        if task.goal not in self._digests:
            self._digests[task.goal] = await self._found(task)
        return self._digests[task.goal]

    async def _found(self, task: Task) -> str | None:
        actions = goal_of(task).actions
        if not any(action.name in self.write_tools for action in actions):
            return self.untouched
        database = await self._databases.take(task.task_id)
        try:
            for action in actions:
                # A read leaves the database as it is, whether it is refused or not.
                if action.name in self.write_tools:
                    await database.call(action.name, action.arguments)
            return database.digest()
        except ToolError:
            return None
        except ConnectionError as error:
            raise WorldFailed(f"the tau2 server is gone: {error}") from error
        finally:
            with suppress(ConnectionError):
                await self._databases.give_back(database)


def digest(database: JsonValue) -> str:
    """Equal for equal databases. 100.0 is 100, as in tau2, whose types turn one into the other."""
    return hashlib.sha256(json.dumps(_plain(database), sort_keys=True).encode()).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
