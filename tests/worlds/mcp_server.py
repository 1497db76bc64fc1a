"""A tiny MCP server of the official package, started by the tests: a counter that each process has
for itself, and ways to fail."""

import os
import sys
import time

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult, TextContent

server = MCPServer("counter")
state = {"count": 0}


@server.tool()
def add(number: int, times: int = 1) -> dict[str, int]:
    """Add to the counter."""
    if number < 0:
        raise ToolError("the counter only goes up")
    state["count"] += number * times
    return {"count": state["count"]}


@server.tool()
def name(title: str, tags: list[str] | None = None) -> str:
    """Give the counter a title."""
    return f"{title} ({', '.join(tags or ['no tags'])})"


@server.tool()
def digits() -> list[int]:
    """The counter's digits."""
    return [int(digit) for digit in str(state["count"])]


@server.tool()
def say(num_chars: int, is_refused: bool) -> CallToolResult:
    """Return that many characters, as a result or as an error."""
    return CallToolResult(content=[TextContent(type="text", text="x" * num_chars)], is_error=is_refused)


@server.tool()
def die() -> str:
    """End the process in the middle of the call."""
    os._exit(3)


@server.tool()
def hang() -> str:
    """Never answer."""
    time.sleep(3600)
    return ""


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run()
