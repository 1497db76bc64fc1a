"""The databases of episodes, kept by real MCP servers that several episodes share.

A process of the airline's takes 50 MB and each database 9 MB more, so a process holds the databases
of some episodes, each under a `state_key` that one episode has at a time and that is reset before
its first call. A process starts when the others are full and ends with its last episode. The server
writes a database into a file after every call; at the end it is read there, because no tool shows
it.
"""

import asyncio
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from posttrain.types import JsonValue
from posttrain.worlds.mcp import McpConnection, McpServer
from posttrain.worlds.protocol import WorldFailed
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
    """All processes of a domain. Each event loop has its own, because a connection belongs to
    one."""

    def __init__(self, package: Tau2Package, *, domain: str, server: str) -> None:
        self._package, self.domain, self._module = package, domain, server
        self._processes: dict[asyncio.AbstractEventLoop, list[_Process]] = {}

    def server(self, folder: Path | None = None) -> McpServer:
        """A server that keeps its files in `folder`; the package is found where this process found
        it."""
        env = {"PYTHONPATH": os.pathsep.join((str(self._package.root), os.environ.get("PYTHONPATH", "")))}
        if folder is not None:
            env[f"{self._package.name.upper()}_STATE_DIR"] = str(folder)
        return McpServer(command=(sys.executable, "-m", self._module), env=env, start_timeout_s=60.0)

    def num_processes(self) -> int:
        """Of the running event loop, with an episode each at least."""
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
        """The episode is over; a process without another ends."""
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
    """One episode's, on a shared server. Give it back."""

    def __init__(self, databases: Databases, process: _Process, slot: int) -> None:
        self.process, self.slot = process, slot
        self.key = f"tau2/{databases.domain}/episode/{slot}"

    async def call(self, name: str, arguments: Mapping[str, Any]) -> JsonValue:
        """What a tool answers. Raises ToolError for a mistake in the call, ConnectionError where
        the server is gone, and its databases with it."""
        try:
            return await self.process.connection.call(name, {**arguments, "state_key": self.key})
        except ConnectionError:
            self.process.is_gone = True
            raise

    def digest(self) -> str:
        """Of the database as it stands. Raises WorldFailed where its file cannot be read."""
        path = self.process.folder / f"{hashlib.sha256(self.key.encode()).hexdigest()}.json"
        try:
            return digest(json.loads(path.read_text(encoding="utf-8"))["db"])
        except (OSError, ValueError, KeyError) as error:
            raise WorldFailed(f"the tau2 server kept no database that can be read: {error}") from error


def digest(database: JsonValue) -> str:
    """Equal for equal databases. 100.0 is 100, as in tau2, whose types turn one into the other."""
    return hashlib.sha256(json.dumps(_plain(database), sort_keys=True).encode()).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
