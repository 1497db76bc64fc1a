"""One episode of a tau2 task: a database of its own, and a user.

An agent sees the server's tools without the `state_key` and without those that serve the benchmark;
a result is what tau2 shows, without the server's notes.
"""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from posttrain.runtime.limits import MAX_REPLY_CHARS, clip
from posttrain.types import JsonValue, Message, Outcome, Task, Trajectory
from posttrain.worlds.protocol import WorldFailed
from posttrain.worlds.tau2.databases import Database, References
from posttrain.worlds.tau2.goals import goal_of
from posttrain.worlds.tau2.grade import grade
from posttrain.worlds.tau2.package import Tau2Package
from posttrain.worlds.tau2.users import User, is_end
from posttrain.worlds.tools import Tool, ToolError, json_or_text

_STATE_KEY = "state_key"
_CONTROLS = ("reset_state", "get_call_log")

CallServer = Callable[[str, Mapping[str, Any]], Awaitable[JsonValue]]


class Tau2World:
    """`described` are the tools, not yet bound to an episode."""

    def __init__(
        self, task: Task, described: Mapping[str, Tool], *, package: Tau2Package, references: References, user: User
    ) -> None:
        self._task, self._goal, self._user = task, goal_of(task), user
        self._package, self._references = package, references
        self._database = Database(package, task.task_id)
        self._tools = {name: _bound(described[name], self._database.call) for name in task.tools}
        self._said: list[str] = []

    def tools(self) -> Mapping[str, Tool]:
        return self._tools

    async def opening(self) -> Sequence[Message]:
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
        is_right = self._database.digest() == await self._references.digest(self._task)
        return grade(trajectory, self._goal, is_database_right=is_right, write_tools=self._package.write_tools)

    async def close(self) -> None:
        await self._database.close()
        await self._user.close()


def agent_tools(served: Mapping[str, Tool], write_tools: frozenset[str]) -> dict[str, Tool]:
    return {
        name: replace(
            tool,
            parameters=_without_key(tool.parameters),
            side_effect="irreversible" if name in write_tools else "none",
        )
        for name, tool in served.items()
        if name not in _CONTROLS
    }


def _bound(tool: Tool, call_server: CallServer) -> Tool:
    async def call(**arguments: Any) -> JsonValue:
        try:
            return _shown(await call_server(tool.name, arguments))
        except ToolError as error:
            raise ToolError(_shown_error(str(error))) from None

    return replace(tool, function=call)


def _shown(answer: JsonValue) -> JsonValue:
    """The part of a server's answer that an agent reads: tau2's message, read where it is JSON."""
    message = answer.get("tau2_tool_message") if isinstance(answer, dict) else None
    if not isinstance(message, dict):
        return answer
    return json_or_text(str(message["content"]))


def _shown_error(text: str) -> str:
    """The same of an error, without the word Error, which the agent reads anyway."""
    try:
        answer = _shown(json.loads(text))
    except (ValueError, RecursionError):
        answer = text
    if isinstance(answer, dict):
        answer = answer.get("parsed_content", answer)
    return (answer if isinstance(answer, str) else json.dumps(answer)).removeprefix("Error: ")


def _without_key(parameters: Mapping[str, Any]) -> dict[str, Any]:
    properties = {name: schema for name, schema in parameters["properties"].items() if name != _STATE_KEY}
    required = [name for name in parameters["required"] if name != _STATE_KEY]
    return {**parameters, "properties": properties, "required": required}
