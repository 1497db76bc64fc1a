"""A world small enough to play on paper, and a codec of one token per word: what the tests of this
folder share.

A lock opens when the three digits of `try_code` are right. The user answers `which lock?` once.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from posttrain.types import JsonValue, Message, Outcome, Task, ToolCall, Trajectory
from posttrain.worlds.protocol import World
from posttrain.worlds.tools import Tool, ToolError, tool_from
from tests.limits import limits_of

LIMITS = limits_of(4, 8, 40)


def lock_task(task_id: str = "t", text: str = "open", tools: tuple[str, ...] = ("try_code", "jam")) -> Task:
    return Task(
        task_id=task_id,
        split="dev",
        messages=(Message("system", "locks"), Message("user", text)),
        tools=tools,
        labels={"kind": "lock"},
        template="lock",
    )


def call(name: str, arguments: str) -> Message:
    return Message("assistant", tool_calls=(ToolCall("as the model likes", name, arguments),))


def say(text: str) -> Message:
    return Message("assistant", text)


class LockWorld:
    def __init__(self, task: Task) -> None:
        self._task = task
        self.num_tries = 0

    def tools(self) -> Mapping[str, Tool]:
        return {name: tool for name, tool in all_tools(self).items() if name in self._task.tools}

    def user_reply(self, message: Message) -> str | None:
        return "the red one" if message.content == "which lock?" else None

    def grade(self, trajectory: Trajectory) -> Outcome:
        is_open = any(message.role == "tool" and '"open":true' in message.content for message in trajectory.messages)
        return Outcome(is_open, is_open, failure="" if is_open else "still_shut")


def all_tools(world: LockWorld) -> dict[str, Tool]:
    def try_code(code: str) -> JsonValue:
        """Turn the wheels."""
        world.num_tries += 1
        if code == "000":
            raise ToolError("000 is never right")
        return {"open": code == "123", "tries": world.num_tries}

    def jam() -> JsonValue:
        """A tool with a bug."""
        raise ZeroDivisionError("our bug")

    return {tool.name: tool for tool in (tool_from(try_code, is_instant=True), tool_from(jam, is_instant=True))}


class LockDomain:
    name = "lock"
    scores = ()

    def __init__(self) -> None:
        self.tools = all_tools(LockWorld(lock_task()))

    def tasks(self, split: str, count: int) -> list[Task]:
        return [lock_task(f"{split}{index}") for index in range(count)]

    def open(self, task: Task) -> World:
        return LockWorld(task)

    def expert(self, task: Task, *, seed: int, is_flawless: bool, reasoning_frac: float) -> "ScriptedExpert":
        return ScriptedExpert([say("done")])

    def regenerate(self, task: Task, *, seed: int) -> Task:
        return task


class EndingDomain(LockDomain):
    """Every tool's first good result is the end."""

    def open(self, task: Task) -> World:
        return _EndingWorld(task)


class _EndingWorld(LockWorld):
    def tools(self) -> Mapping[str, Tool]:
        return {name: replace(tool, ends_episode=True) for name, tool in super().tools().items()}


@dataclass
class ScriptedExpert:
    """An expert that gives its messages in order."""

    lines: list[Message]

    def reply(self, messages: Sequence[Message]) -> Message:
        return self.lines.pop(0)


class WordCodec:
    """One id per word, given out in the order in which words are first met; 0 ends a message. A
    call is written `call NAME ARGUMENTS`."""

    stop_ids = frozenset({0})

    def __init__(self) -> None:
        self.words: list[str] = ["<stop>"]
        self.num_prompts_encoded = 0

    def ids(self, text: str) -> list[int]:
        self.words += [word for word in dict.fromkeys(text.split()) if word not in self.words]
        return [self.words.index(word) for word in text.split()]

    def encode_prompt(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> list[int]:
        self.num_prompts_encoded += 1
        return self.ids(
            " ".join(
                [*(tool["function"]["name"] for tool in tools), *(message.content for message in messages), "agent:"]
            )
        )

    def encode_assistant(self, message: Message) -> list[int]:
        calls = [f"call {made.name} {made.arguments}" for made in message.tool_calls]
        return [*self.ids(" ".join([message.content, *calls])), 0]

    def encode_results(self, messages: Sequence[Message], calls: Sequence[ToolCall]) -> list[int]:
        return self.ids(" ".join([*(f"{message.role}: {message.content}" for message in messages), "agent:"]))

    def parse(self, token_ids: Sequence[int], tools: Sequence[Mapping[str, Any]]) -> Message:
        text = " ".join(self.words[token] if token < len(self.words) else "?" for token in token_ids if token)
        if text.startswith("call "):
            _, name, arguments = text.split(" ", 2)
            return Message("assistant", tool_calls=(ToolCall("call_0", name, arguments),))
        return Message("assistant", text)


def arguments_of(code: str) -> str:
    return json.dumps({"code": code}, separators=(",", ":"))
