"""The server's tools as an agent sees them: without the `state_key`, which the world puts in, and
without those that serve the benchmark; a result is what tau2 shows, without the server's notes."""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from posttrain.types import JsonValue
from posttrain.worlds.tools import Tool, ToolError, json_or_text

_STATE_KEY = "state_key"
_CONTROLS = ("reset_state", "get_call_log")

CallServer = Callable[[str, Mapping[str, Any]], Awaitable[JsonValue]]


def agent_tools(served: Mapping[str, Tool], write_tools: frozenset[str]) -> dict[str, Tool]:
    """The tools by name, to be described but not called."""
    return {
        name: replace(tool, parameters=_without_key(tool.parameters), is_read_only=name not in write_tools)
        for name, tool in served.items()
        if name not in _CONTROLS
    }


def bound(tool: Tool, call_server: CallServer) -> Tool:
    """The tool for one episode."""

    async def call(**arguments: Any) -> JsonValue:
        try:
            return shown(await call_server(tool.name, arguments))
        except ToolError as error:
            raise ToolError(shown_error(str(error))) from None

    return replace(tool, function=call)


def shown(answer: JsonValue) -> JsonValue:
    """What an agent reads of a server's answer: tau2's message, as JSON where it is JSON."""
    message = answer.get("tau2_tool_message") if isinstance(answer, dict) else None
    if not isinstance(message, dict):
        return answer
    return json_or_text(str(message["content"]))


def shown_error(text: str) -> str:
    """As `shown`, of an answer that is an error; without the word Error, which the agent reads
    anyway."""
    try:
        answer = shown(json.loads(text))
    except (ValueError, RecursionError):
        answer = text
    if isinstance(answer, dict):
        answer = answer.get("parsed_content", answer)
    return (answer if isinstance(answer, str) else json.dumps(answer)).removeprefix("Error: ")


def _without_key(parameters: Mapping[str, Any]) -> dict[str, Any]:
    properties = {name: schema for name, schema in parameters["properties"].items() if name != _STATE_KEY}
    required = [name for name in parameters["required"] if name != _STATE_KEY]
    return {**parameters, "properties": properties, "required": required}
