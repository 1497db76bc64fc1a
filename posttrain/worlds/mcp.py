"""Makes the tools of an MCP server tools of a world: schemas are read once for the domain, and each
episode has a connection of its own.

The connection is opened by the first call, so that an episode that calls nothing starts no server.
A result with `isError` is the agent's mistake, which it reads. A server that is gone took the
episode's state with it, so it is never reconnected, and the episode is played again.
"""

import asyncio
import contextlib
import re
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, TextIO

from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.types import (
    INVALID_PARAMS,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    EmbeddedResource,
    ResourceLink,
    TextContent,
    TextResourceContents,
    ToolAnnotations,
)
from mcp.types import Tool as McpTool
from pydantic import ValidationError

from posttrain.runtime.exits import ConfigurationError
from posttrain.runtime.limits import clip, reason
from posttrain.runtime.redaction import redact, redact_logs, redact_values, remember_keys
from posttrain.types import JsonValue
from posttrain.worlds.tools import Tool, ToolError, json_or_text, result_text

_CLOSE_TIMEOUT_S = 10.0  # the client itself ends a process after 4 s
_SHOWN_CHARS = 500  # of a server's stderr
_NAME = re.compile(r"[A-Za-z0-9_./-]{1,128}")  # of MCP 2025-11-25; other characters may be special tokens


@dataclass(frozen=True, slots=True)
class McpServer:
    """A `command` that is started (stdio), or the `url` of a running server (streamable HTTP).

    A command gets PATH, HOME and their like of this process's environment, and `env`. It is one
    process for each open episode: serve what is heavy at a URL.
    """

    command: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    url: str = ""
    start_timeout_s: float = 15.0

    def __post_init__(self) -> None:
        if bool(self.command) == bool(self.url):
            raise ConfigurationError(
                f"an MCP server has a command or a URL, one of the two; this has {self.command!r} and {self.url!r}"
            )
        remember_keys({**self.env, **_keys_of_command(self.command)})

    def tools(self) -> dict[str, Tool]:
        """All tools of the server by name, in its order. They describe and cannot be called, until
        `McpConnection.tools` binds them to an episode. Raises ConfigurationError where the server
        cannot be reached."""
        return {tool.name: tool for tool in map(_described, asyncio.run(self._list()))}

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[tuple[Client, TextIO]]:
        """A client, not yet connected, and the file that takes the server's stderr."""
        redact_logs()  # the client logs what it cannot read
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as stderr:
            if self.url:
                yield Client(self.url), stderr
            else:
                program, *arguments = self.command
                parameters = StdioServerParameters(command=program, args=arguments, env=dict(self.env))
                yield Client(stdio_client(parameters, errlog=stderr)), stderr

    async def _list(self) -> list[McpTool]:
        found: list[McpTool] = []
        async with self.client() as (client, stderr):
            try:
                async with asyncio.timeout(self.start_timeout_s), client:
                    page = await client.list_tools()
                    found += page.tools
                    while page.next_cursor:
                        page = await client.list_tools(cursor=page.next_cursor)
                        found += page.tools
            except Exception as error:
                late = f"not within start_timeout_s = {self.start_timeout_s:g}; " * isinstance(error, TimeoutError)
                raise ConfigurationError(
                    f"the MCP server {reason(self.url or ' '.join(self.command))} does not list its tools "
                    f"({late}{_reason(error, stderr)}): a task cannot offer what nobody describes. Start it by hand "
                    "to see why"
                ) from None
        return found


class McpConnection:
    """The connection of one episode; a world closes it in its own `close`."""

    def __init__(self, server: McpServer) -> None:
        self._server = server
        self._client: asyncio.Future[tuple[Client, TextIO]] | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_over = asyncio.Event()

    def tools(self, described: Mapping[str, Tool], names: Sequence[str]) -> dict[str, Tool]:
        """The tools that a task offers, bound to this connection."""
        return {name: replace(described[name], function=self._caller(name)) for name in names}

    async def call(self, name: str, arguments: Mapping[str, Any]) -> JsonValue:
        """The server's answer. Raises ToolError, or ConnectionError where the server is gone."""
        if self._client is None:
            self._client = asyncio.get_running_loop().create_future()
            # The client's scopes must be left in the task that entered them; calls come from many.
            self._task = asyncio.create_task(self._run(self._client))
        client, stderr = await asyncio.shield(self._client)
        try:
            # not `call_tool`: it holds a result against the server's own schema for it, in which a
            # pattern may take hours, and asks for the list of tools once more
            request = CallToolRequest(params=CallToolRequestParams(name=name, arguments=dict(arguments)))
            return _content(await client.session.send_request(request, CallToolResult))
        except (ValidationError, RuntimeError) as error:
            raise ConnectionError(f"the MCP server answers what is no result: {_reason(error, stderr)}") from None
        except MCPError as error:
            if error.code == INVALID_PARAMS:
                raise ToolError(error.message) from None
            raise ConnectionError(f"the MCP server failed: {_reason(error, stderr)}") from None

    async def close(self) -> None:
        """Ends the connection, also that of a server that died or hangs."""
        self._is_over.set()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=_CLOSE_TIMEOUT_S)
            self._task.cancel()

    def _caller(self, name: str) -> Any:
        async def call(**arguments: Any) -> JsonValue:
            return await self.call(name, arguments)

        return call

    async def _run(self, connected: "asyncio.Future[tuple[Client, TextIO]]") -> None:
        async with self._server.client() as (client, stderr):
            try:
                async with client:
                    connected.set_result((client, stderr))
                    await self._is_over.wait()
            except Exception as error:  # of a connection that was up, each call has its own
                if not connected.done():
                    why = f"the MCP server cannot be reached: {_reason(error, stderr)}"
                    connected.set_exception(ConnectionError(why))


def _described(tool: McpTool) -> Tool:
    if not _NAME.fullmatch(tool.name):
        raise ConfigurationError(
            f"an MCP tool has the name {clip(tool.name, 200)!r}; a name that an agent can write has 1 to 128 letters, "
            "digits, _ - . /"
        )
    properties = {key: _untitled(value) for key, value in tool.input_schema.get("properties", {}).items()}
    required = tool.input_schema.get("required", [])
    parameters: Any = redact_values({**_untitled(tool.input_schema), "properties": properties, "required": required})
    described = Tool(tool.name, redact(tool.description or ""), parameters, _of_no_episode)
    match tool.annotations:
        case ToolAnnotations(read_only_hint=True):
            return replace(described, side_effect="none")
        case ToolAnnotations(destructive_hint=True):
            return replace(described, side_effect="irreversible")
    return described


def _untitled(schema: Any) -> Any:
    """Titles repeat the names, and every token of a schema is read by the agent."""
    if not isinstance(schema, dict):
        return schema
    return {key: value for key, value in schema.items() if key not in ("title", "$schema")}


async def _of_no_episode(**_: Any) -> JsonValue:
    raise RuntimeError(
        "this tool describes an MCP server's and belongs to no episode: call those of McpConnection.tools"
    )


def _content(result: CallToolResult) -> JsonValue:
    """Structured content where there is some, or the text; an image or a sound is only named."""
    text, structured = "\n".join(map(_block_text, result.content)), result.structured_content
    if result.is_error:
        said = text or (result_text(structured) if structured is not None else "")
        raise ToolError(said or "the server says that the call failed, and nothing else")
    if structured is not None:
        value: JsonValue = structured["result"] if set(structured) == {"result"} else structured
        return value
    return json_or_text(text)


def _block_text(block: Any) -> str:
    match block:
        case TextContent(text=str(text)) | EmbeddedResource(resource=TextResourceContents(text=str(text))):
            return text
        case EmbeddedResource():
            return f"[resource {block.resource.uri}]"
        case ResourceLink():
            return f"[{block.name}]({block.uri})"
    return f"[{block.type} {block.mime_type}]"


def _keys_of_command(command: Sequence[str]) -> dict[str, str]:
    """Arguments by the option before them: `--api-key abc`, `--api-key=abc`."""
    joined = [argument.partition("=") for argument in command if argument.startswith("-") and "=" in argument]
    return {name: value for name, _, value in joined} | {
        name: value for name, value in pairwise(command) if name.startswith("-")
    }


def _reason(error: BaseException, stderr: TextIO) -> str:
    """The error in a line, and the end of the server's stderr."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    stderr.seek(0)
    text = redact(stderr.read()).strip()[-_SHOWN_CHARS:]
    return f"{type(error).__name__}: {reason(error)}".rstrip(": ") + (f"; it said: …{text}" if text else "")
