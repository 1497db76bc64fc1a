"""How do the tools of an MCP server become tools of a world? Their schemas are read once for the domain; each episode has a connection of its own.

The connection is opened by the first call, so that an episode that calls nothing starts no server, and it lives in a task of its own, because the
client's scopes must be left in the task that entered them, while calls come from many. A result with `isError` is the agent's mistake: it reads it.
A server that is gone is not: it is never connected to again within the episode, whose state it took with it; the episode is played again.
"""

import asyncio
import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import IO, Any

from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.types import INVALID_PARAMS, CallToolResult, TextContent
from mcp.types import Tool as McpTool

from posttrain.exits import ConfigurationError
from posttrain.types import JsonValue
from posttrain.worlds.tools import Tool, ToolError

START_TIMEOUT_S = 60.0  # of a server whose tools are to be listed
_CLOSE_TIMEOUT_S = 10.0  # the client itself ends a process after 4 s


@dataclass(frozen=True, slots=True)
class McpServer:
    """Where a server is: a `command` that is started and spoken to over its stdin and stdout, or the `url` of one that runs (streamable HTTP).

    A command gets PATH, HOME and their like of this process's environment, and `env`. It is one process for each open episode, of which a large batch
    has hundreds: serve what is heavy at a URL.
    """

    command: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    url: str = ""

    def __post_init__(self) -> None:
        if bool(self.command) == bool(self.url):
            raise ConfigurationError(f"an MCP server has a command or a URL, one of the two; this has {self.command!r} and {self.url!r}")

    def tools(self) -> dict[str, Tool]:
        """All tools of the server by name, in its order, to be described but not called: `McpConnection.tools` binds them to an episode.

        Connects once, and so waits. Raises ConfigurationError where the server cannot be reached or a tool's arguments are no JSON object.
        """
        return {tool.name: tool for tool in map(_described, asyncio.run(self._list()))}

    @contextlib.contextmanager
    def client(self) -> Iterator[tuple[Client, IO[str]]]:
        """A client, not yet connected, and the file that a command's stderr goes to."""
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
            if self.url:
                yield Client(self.url), errors
            else:
                parameters = StdioServerParameters(command=self.command[0], args=list(self.command[1:]), env=dict(self.env))
                yield Client(stdio_client(parameters, errlog=errors)), errors

    async def _list(self) -> list[McpTool]:
        with self.client() as (client, errors):
            try:
                async with asyncio.timeout(START_TIMEOUT_S), client:
                    found, cursor = [], None
                    while True:
                        page = await client.list_tools(cursor=cursor)
                        found += page.tools
                        cursor = page.next_cursor
                        if not cursor:
                            return found
            except Exception as error:
                raise ConfigurationError(
                    f"the MCP server {self.url or ' '.join(self.command)} does not list its tools ({_reason(error, errors)}): a task cannot offer "
                    "what nobody describes. Start it by hand to see why"
                ) from error


class McpConnection:
    """One episode's connection. `close` it when the episode is over, as `ClosableWorld.close` does."""

    def __init__(self, server: McpServer) -> None:
        self._server = server
        self._client: asyncio.Future[Client] | None = None
        self._holder: asyncio.Task[None] | None = None
        self._is_over = asyncio.Event()
        self._said: IO[str] | None = None

    def tools(self, described: Mapping[str, Tool], names: Sequence[str]) -> dict[str, Tool]:
        """The tools that a task offers, bound to this connection."""
        return {name: replace(described[name], function=self._caller(name)) for name in names}

    async def call(self, name: str, arguments: Mapping[str, Any]) -> JsonValue:
        """What the server answers, as JSON where it is. Raises ToolError for a mistake in the call, ConnectionError where the server is gone."""
        try:
            client = await self._connected()
            return _content(await client.call_tool(name, dict(arguments)))
        except MCPError as error:
            if error.code == INVALID_PARAMS:
                raise ToolError(error.message) from error
            raise ConnectionError(f"the MCP server failed: {_reason(error, self._said)}") from error

    async def close(self) -> None:
        """Also of a server that died or hangs; what it says to that is not of interest."""
        self._is_over.set()
        if self._holder is not None:
            await asyncio.wait({self._holder}, timeout=_CLOSE_TIMEOUT_S)
            self._holder.cancel()

    def _caller(self, name: str) -> Any:
        async def call(**arguments: Any) -> JsonValue:
            return await self.call(name, arguments)

        return call

    async def _connected(self) -> Client:
        if self._client is None:
            self._client = asyncio.get_running_loop().create_future()
            self._holder = asyncio.create_task(self._hold(self._client))
        return await asyncio.shield(self._client)

    async def _hold(self, connected: "asyncio.Future[Client]") -> None:
        with self._server.client() as (client, errors):
            self._said = errors
            try:
                async with client:
                    connected.set_result(client)
                    await self._is_over.wait()
            except Exception as error:  # of a connection that was up, each call has its own
                if not connected.done():
                    connected.set_exception(ConnectionError(f"the MCP server cannot be reached: {_reason(error, errors)}"))
            self._said = None


def _described(tool: McpTool) -> Tool:
    if tool.input_schema.get("type") != "object":
        raise ConfigurationError(f"the MCP tool {tool.name!r} takes {json.dumps(tool.input_schema)[:200]}; a tool's arguments must be a JSON object")
    properties = {name: _untitled(schema) for name, schema in tool.input_schema.get("properties", {}).items()}
    parameters = {**_untitled(tool.input_schema), "properties": properties, "required": tool.input_schema.get("required", [])}
    return Tool(tool.name, tool.description or "", parameters, _of_no_episode)


def _untitled(schema: Any) -> Any:
    """Titles repeat the names, and every token of a schema is read by the agent."""
    return {key: value for key, value in schema.items() if key not in ("title", "$schema")} if isinstance(schema, dict) else schema


async def _of_no_episode(**_: Any) -> JsonValue:
    raise RuntimeError("this tool describes an MCP server's and belongs to no episode: call those of McpConnection.tools")


def _content(result: CallToolResult) -> JsonValue:
    """Structured content where there is some; text as JSON where it is JSON; of an image or a sound, that there was one."""
    text = "\n".join(block.text if isinstance(block, TextContent) else f"[{block.type}]" for block in result.content)
    if result.is_error:
        raise ToolError(text)
    structured: JsonValue = result.structured_content
    if structured is not None:
        return structured["result"] if isinstance(structured, dict) and set(structured) == {"result"} else structured
    try:
        parsed: JsonValue = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return parsed


def _reason(error: BaseException, errors: IO[str] | None) -> str:
    """The error in a line, and the last that the server wrote to its stderr."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    said = ""
    if errors is not None and not errors.closed:
        size = os.fstat(errors.fileno()).st_size
        said = os.pread(errors.fileno(), 500, max(0, size - 500)).decode(errors="replace").strip()  # the position is the server's
    return f"{type(error).__name__}: {error}" + (f"; it said: …{said}" if said else "")
