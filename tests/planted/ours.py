"""A team's world in which every party says keys aloud: its tools, their errors, an MCP server, the
user, and an agent that is a program.

Copied into a tree of its own, where the stages find it as `ours`.
"""

import base64
import json
import os
import sys
import urllib.parse
from pathlib import Path

from posttrain.rollout.agents.openai_proxy import openai_loop
from posttrain.types import Message, Outcome, Task
from posttrain.worlds.mcp import McpConnection, McpServer
from posttrain.worlds.tools import ToolError, tool_from
from tests.key_examples import planted

OWN = ("quote", "refuse", "flood", "crash")
SERVED = ("mcp_quote", "mcp_refuse", "mcp_flood", "mcp_die")
SERVER = McpServer(
    command=(sys.executable, str(Path(__file__).with_name("mcp_server.py"))),
    env={
        name: os.environ.get(name, "") for name in ("SERVICE_TOKEN", "SERVICE_SECRET", "SERVICE_PASSWORD", "PYTHONPATH")
    },
)


def quote() -> dict[str, str]:
    """Gives the key in every spelling."""
    key = os.environ["MARKET_API_KEY"]
    login = base64.b64encode(f"me:{key}".encode()).decode()
    url = f"https://example.org/?key={urllib.parse.quote(key, safe='')}"
    return {"key": key, "login": f"Basic {login}", "url": url, "body": json.dumps({"key": key}), "begin": key[:14]} | {
        planted("a tool's key"): planted("a tool", 12)
    }


def refuse() -> str:
    """Quotes the key in its refusal."""
    raise ToolError(f"401: the token {os.environ['BROKER_TOKEN']} is not known {planted('a refusal')}")


def flood() -> str:
    """Refuses in 50 MB, with the key across the place where it is cut."""
    raise ToolError("x" * (MAX_RESULT_CHARS - 60) + os.environ["VENDOR_SECRET"] + "x" * 50_000_000)


def crash() -> str:
    """Breaks with the key in its exception."""
    raise ConnectionError(f"cannot log in with {os.environ['DB_PASSWORD']!r} {planted('an exception', at_most=4)}")


MAX_RESULT_CHARS = 250_000
TOOLS = {
    function.__name__: tool_from(function, is_instant=function is not quote)
    for function in (quote, refuse, flood, crash)
}


def answer(task):
    raise RuntimeError(f"no model behind {os.environ['AGENT_CREDENTIAL']} {planted('an agent', at_most=4)}")


agent = openai_loop(answer)


class World:
    def __init__(self, tools, names):
        self._connection = McpConnection(SERVER)
        self._tools = {name: tools[name] for name in names if name in OWN}
        self._tools |= self._connection.tools(tools, [name for name in names if name in SERVED])
        self._has_replied = False

    def tools(self):
        return self._tools

    def user_reply(self, message):
        """The user quotes what stands in his `.env`, once."""
        said, self._has_replied = self._has_replied, True
        return None if said else (f"take {Path('.env').read_text().partition('=')[2].strip()} {planted('a user')}")

    def grade(self, trajectory):
        is_done = trajectory.messages[-1].content.endswith("ANSWER: done")
        return Outcome(is_done, is_done, feedback=f"sent to {os.environ['VENDOR_SECRET']} {planted('a grade')}")

    async def close(self):
        await self._connection.close()


class Domain:
    """A task for each tool, one for the user and one for the program that plays itself; `rl`, `dev`
    and the test splits have the first of them."""

    name = "ours"
    scores = ()

    def __init__(self, _):
        self.tools = {**TOOLS, **SERVER.tools()}

    def tasks(self, split, count):
        names = [*OWN, *SERVED, "", "agent"]
        return [self._task(split, names[index % len(names)], index) for index in range(count)]

    def _task(self, split, name, index):
        return Task(
            task_id=f"{split}-{index}",
            split=split,
            template="ours",
            messages=(Message("system", "Use the tools."), Message("user", f"{split} {index}: {name}")),
            tools=(name,) if name in (*OWN, *SERVED) else ("quote",),
            labels={"kind": name or "user"},
            agent_name="ours:agent" if name == "agent" else "tools",
        )

    def open(self, task):
        return World(self.tools, task.tools)

    def regenerate(self, task, *, seed):
        return task
