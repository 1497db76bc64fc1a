"""Makes the tools of an MCP server tools of a world: schemas are read once for the domain, and each
episode has a connection of its own.

The connection is opened by the first call, so that an episode that calls nothing starts no server,
and it lives in a task of its own, because the client's scopes must be left in the task that entered
them, while calls come from many. A result with `isError`, or one too long to be read, is the
agent's mistake, which it reads. A server that is gone is not: it took the episode's state with it,
so it is never reconnected, and the episode is played again.
"""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from httpx2 import StreamError
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp.types import (
    INVALID_PARAMS,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    EmbeddedResource,
    ResourceLink,
    TextContent,
    TextResourceContents,
)
from mcp.types import Tool as McpTool
from pydantic import ValidationError

from posttrain.runtime.exits import ConfigurationError
from posttrain.runtime.http_bodies import bound_httpx
from posttrain.runtime.limits import MAX_SCHEMA_CHARS, clip, reason
from posttrain.runtime.redaction import redact, redact_logs, redact_values, remember_keys
from posttrain.types import JsonValue
from posttrain.worlds.mcp_stdio import UNREADABLE, ServerLog, stdio_transport
from posttrain.worlds.tools import Tool, ToolError, json_or_text, result_text

_CLOSE_TIMEOUT_S = 10.0  # the client itself ends a process after 4 s
_MAX_PAGES = 100
_MAX_TOOLS = 1_000
_MAX_LISTED_BYTES = 16 * 2**20  # of all pages together
_NAME = re.compile(r"[A-Za-z0-9_./-]{1,128}")  # of MCP 2025-11-25; other characters may be special tokens


@dataclass(frozen=True, slots=True)
class McpServer:
    """An MCP server: a `command` that is started (stdio), or the `url` of a running one (streamable
    HTTP).

    A command gets PATH, HOME and their like of this process's environment, and `env`. It is one
    process for each open episode, of which a large batch has hundreds: serve what is heavy at a
    URL. It must list its tools within `start_timeout_s`.
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
        """All tools of the server by name, in its order; they describe and cannot be called, until
        `McpConnection.tools` binds them to an episode. Blocks while it connects once. Raises
        ConfigurationError where the server cannot be reached, lists without end, or describes a
        tool as no prompt could offer it."""
        return {tool.name: tool for tool in map(_described, asyncio.run(self._list()))}

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[tuple[Client, ServerLog]]:
        """A client, not yet connected, and the log of the server's other output."""
        redact_logs()  # the client logs what it cannot read
        log = ServerLog()
        if not self.url:
            yield Client(stdio_transport(self.command, self.env, log)), log
            return

        def refuse(why: str) -> StreamError:
            log.refused = why
            return StreamError(why)

        async with create_mcp_http_client() as connections:
            bound_httpx(connections, refuse)
            yield Client(streamable_http_client(self.url, http_client=connections)), log

    async def _list(self) -> list[McpTool]:
        async with self.client() as (client, log):
            try:
                async with asyncio.timeout(self.start_timeout_s), client:
                    return await _listed(client)
            except Exception as error:
                late = f"not within start_timeout_s = {self.start_timeout_s:g}; " * isinstance(error, TimeoutError)
                raise ConfigurationError(
                    f"the MCP server {reason(self.url or ' '.join(self.command))} does not list its tools "
                    f"({late}{_reason(error, log)}): a task cannot "
                    "offer what nobody describes. Start it by hand to see why"
                ) from None


class McpConnection:
    """The connection of one episode; a world closes it in its own `close`."""

    def __init__(self, server: McpServer) -> None:
        self._server = server
        self._client: asyncio.Future[Client] | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_over = asyncio.Event()
        self._log = ServerLog()

    def tools(self, described: Mapping[str, Tool], names: Sequence[str]) -> dict[str, Tool]:
        """The tools that a task offers, bound to this connection."""
        return {name: replace(described[name], function=self._caller(name)) for name in names}

    async def call(self, name: str, arguments: Mapping[str, Any]) -> JsonValue:
        """The server's answer, as JSON where it is any. Raises ToolError for a mistake in the call,
        ConnectionError where the server is gone."""
        try:
            client = await self._connected()
            # not `call_tool`: it holds a result against the server's own schema for it, in which a
            # pattern may take hours, and asks for the list of tools once more
            request = CallToolRequest(params=CallToolRequestParams(name=name, arguments=dict(arguments)))
            return _content(await client.session.send_request(request, CallToolResult))
        except (ValidationError, RuntimeError) as error:
            raise ConnectionError(f"the MCP server answers what is no result: {_reason(error, self._log)}") from None
        except MCPError as error:
            if error.code in (INVALID_PARAMS, UNREADABLE):
                raise ToolError(error.message) from None
            if self._log.refused:
                why, self._log.refused = self._log.refused, ""
                raise ToolError(why) from None
            raise ConnectionError(f"the MCP server failed: {_reason(error, self._log)}") from None

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

    async def _connected(self) -> Client:
        if self._client is None:
            self._client = asyncio.get_running_loop().create_future()
            self._task = asyncio.create_task(self._run(self._client))
        return await asyncio.shield(self._client)

    async def _run(self, connected: "asyncio.Future[Client]") -> None:
        async with self._server.client() as (client, log):
            self._log = log
            try:
                async with client:
                    connected.set_result(client)
                    await self._is_over.wait()
            except Exception as error:  # of a connection that was up, each call has its own
                if not connected.done():
                    why = f"the MCP server cannot be reached: {_reason(error, log)}"
                    connected.set_exception(ConnectionError(why))


async def _listed(client: Client) -> list[McpTool]:
    found: list[McpTool] = []
    size, cursor = 0, None
    for _ in range(_MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        found += page.tools
        size += len(page.model_dump_json())
        if len(found) > _MAX_TOOLS or size > _MAX_LISTED_BYTES:
            raise RuntimeError(f"it lists {len(found)} tools in {size / 2**20:.1f} MiB and more, which no prompt takes")
        cursor = page.next_cursor
        if not cursor:
            break
    else:
        raise RuntimeError(f"its list has no end in {_MAX_PAGES} pages")
    names = [tool.name for tool in found]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise RuntimeError(f"two of its tools have the name {clip(twice, 200)!r}: a call could mean either")
    return found


def _described(tool: McpTool) -> Tool:
    import jsonschema  # type: ignore[import-untyped]

    name = clip(tool.name, 200)
    if not _NAME.fullmatch(tool.name):
        raise ConfigurationError(
            f"an MCP tool has the name {name!r}; a name that an agent can write has 1 to 128 letters, digits, _ - . /"
        )
    try:
        schema = json.dumps(tool.input_schema, allow_nan=False)
        jsonschema.Draft202012Validator.check_schema(tool.input_schema)
        if tool.input_schema.get("type") != "object":
            raise ValueError("its type is another")
    except (ValueError, RecursionError, jsonschema.SchemaError) as error:
        raise ConfigurationError(
            f"the MCP tool {name!r} takes {clip(str(tool.input_schema), 200)}; a tool's arguments must be a JSON "
            f"object ({clip(getattr(error, 'message', str(error)), 200)})"
        ) from None
    if (num_chars := len(schema) + len(tool.description or "")) > MAX_SCHEMA_CHARS:
        raise ConfigurationError(
            f"the MCP tool {name!r} is described in {num_chars:,} characters, "
            f"and {MAX_SCHEMA_CHARS:,} is the most that a prompt takes: no agent "
            "could read it; shorten it, or leave the tool out"
        )
    properties = {key: _untitled(value) for key, value in tool.input_schema.get("properties", {}).items()}
    required = tool.input_schema.get("required", [])
    parameters: Any = redact_values({**_untitled(tool.input_schema), "properties": properties, "required": required})
    return Tool(tool.name, redact(tool.description or ""), parameters, _of_no_episode)


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


def _reason(error: BaseException, log: ServerLog) -> str:
    """The error in a line, and the end of the server's other output."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    said = f"; it said: …{log.text()}" if log.text() else ""
    return f"{type(error).__name__}: {reason(error)}".rstrip(": ") + said
