"""An MCP server that says its keys wherever a server can: in results, in `isError`, on its stderr
and beside the protocol on its stdout."""

import os
import sys

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

from tests.key_examples import SPELLINGS, examples, planted

server = MCPServer("planted")


@server.tool()
def mcp_quote() -> dict[str, str]:
    """Gives the token."""
    return {"token": os.environ["SERVICE_TOKEN"], "keys": planted("a server's tool", 3)}


@server.tool()
def mcp_refuse() -> str:
    """Quotes the secret in an error."""
    raise ToolError(f"the secret {os.environ['SERVICE_SECRET']} is not known {planted('a refusal of a server')}")


@server.tool()
def mcp_flood() -> str:
    """Answers in 20 MB."""
    return "x" * 20_000_000 + os.environ["SERVICE_SECRET"]


@server.tool()
def mcp_die() -> str:
    """Says the password to whoever listens, and dies."""
    print(f"debug: {os.environ['SERVICE_TOKEN']}", flush=True)
    print(SPELLINGS["JSON behind a newline"](examples(1)["npm"]), file=sys.stderr)
    print(f"cannot go on with {os.environ['SERVICE_PASSWORD']}", file=sys.stderr, flush=True)
    os._exit(3)


server.run()
