"""Databases of episodes, each kept by an MCP server of its own, and the digests that the reference
calls lead to.

The server writes its database into a file after every call; at the end of an episode it is read
there, because no tool shows it.
"""

import hashlib
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posttrain.types import JsonValue, Task
from posttrain.worlds.mcp import McpConnection
from posttrain.worlds.protocol import WorldFailed
from posttrain.worlds.tau2.goals import goal_of
from posttrain.worlds.tau2.package import Tau2Package
from posttrain.worlds.tools import ToolError


class Database:
    """The database of one episode. Its server starts with the first call."""

    def __init__(self, package: Tau2Package, task_id: str) -> None:
        self._package, self._key = package, task_id  # a key is `tau2/<domain>/<id>`, and so is a task's id
        self._folder = tempfile.TemporaryDirectory(prefix="posttrain-tau2-", ignore_cleanup_errors=True)
        self._connection = McpConnection(package.mcp_server(Path(self._folder.name)))

    async def call(self, name: str, arguments: Mapping[str, Any]) -> JsonValue:
        """The answer of a tool. Raises ToolError for a mistake in the call, ConnectionError where
        the server is gone, and its database with it."""
        return await self._connection.call(name, {**arguments, "state_key": self._key})

    def digest(self) -> str:
        """The digest as it stands. Raises WorldFailed where its file cannot be read."""
        path = Path(self._folder.name) / f"{hashlib.sha256(self._key.encode()).hexdigest()}.json"
        if not path.exists():  # nothing was called
            return digest(dict(self._package.database))
        try:
            return digest(json.loads(path.read_text(encoding="utf-8"))["db"])
        except (OSError, ValueError, KeyError) as error:
            raise WorldFailed(f"the tau2 server kept no database that can be read: {error}") from error

    async def close(self) -> None:
        await self._connection.close()
        self._folder.cleanup()


class References:
    """The digest of each task's reference, found once by making its calls on the real server."""

    def __init__(self, package: Tau2Package) -> None:
        self._package = package
        self._digests: dict[str, str | None] = {}

    async def digest(self, task: Task) -> str | None:
        """The digest that the database must have at the end; None, which nothing equals, where a
        reference call that writes is refused: tau2 takes no verdict from half a reference. Raises
        WorldFailed where the server is gone."""
        if task.task_id not in self._digests:
            self._digests[task.task_id] = await self._found(task)
        return self._digests[task.task_id]

    async def _found(self, task: Task) -> str | None:
        database = Database(self._package, task.task_id)
        try:
            for action in goal_of(task).actions:
                # A read leaves the database as it is, whether it is refused or not.
                if action.name in self._package.write_tools:
                    await database.call(action.name, action.arguments)
            return database.digest()
        except ToolError:
            return None
        except ConnectionError as error:
            raise WorldFailed(f"the tau2 server is gone: {error}") from error
        finally:
            await database.close()


def digest(database: JsonValue) -> str:
    """Equal for equal databases. 100.0 is 100, as in tau2, whose types turn one into the other."""
    return hashlib.sha256(json.dumps(_plain(database), sort_keys=True).encode()).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
