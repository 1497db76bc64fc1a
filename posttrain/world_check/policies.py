"""Who plays when a world is tried: its expert, who never says a word, and the adversaries, who take
what the expert said and did and leave out, repeat, add to or spoil its calls."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from posttrain.rollout.agent_loops import AgentFailed
from posttrain.rollout.episode import Episode, Reply
from posttrain.rollout.episodes import run_episodes
from posttrain.rollout.params import AgentParams
from posttrain.runtime.limits import reason
from posttrain.types import Message, StopReason, Task, ToolCall, Trajectory
from posttrain.world_check.recorder import Recorder
from posttrain.worlds.made_calls import agent_messages
from posttrain.worlds.protocol import Domain, ExpertDomain
from posttrain.worlds.scripts import call, say
from posttrain.worlds.tools import Tool

MAX_AT_ONCE = 32  # open worlds, which may each be a process
NUM_EMPTY = 8  # empty messages to a user who answers every one
EXPERT_SEED = 1
# Wider than any agent's: it is the world that is tried. A lost episode is a finding of its own.
LIMITS = AgentParams(
    max_turns=200,
    max_new_tokens=100_000,
    max_context_tokens=1_000_000,
    max_seconds=300.0,
    tool_timeout_s=60.0,
    tool_retries=0,
    max_result_chars=100_000,
    max_aborted_frac=0.0,
).model_copy(update={"max_aborted_frac": 1.0})

Player = Callable[[Sequence[Message]], Message | None]  # None: has nothing more to say


@dataclass(frozen=True, slots=True)
class Part:
    """One episode to play; its player is made when it begins."""

    task: Task
    make: Callable[[], Player]


class Players:
    """A policy that plays each part by its own player, and gives way to the other episodes before
    every message."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self._players: dict[str, Player] = {}

    async def reply(self, episode: Episode) -> Reply:
        await asyncio.sleep(0)
        if episode.episode_id not in self._players:
            self._players[episode.episode_id] = self._parts[episode.seed].make()
        message = self._players[episode.episode_id](episode.messages)
        return Reply(message, None if message is not None else StopReason.TOKEN_LIMIT)

    def release(self, episode: Episode) -> None:
        self._players.pop(episode.episode_id, None)


def play(domain: Domain, parts: Sequence[Part], *, at_once: int = MAX_AT_ONCE) -> list[Trajectory]:
    """One trajectory for each part, in their order; equal plays are equal, whatever their place."""
    played: list[Trajectory] = []
    for start in range(0, len(parts), at_once):
        some = parts[start : start + at_once]
        # The agent's own program is not what is tried; whoever plays, plays by calls.
        tasks = [
            part.task if part.task.agent_name == "single_turn" else replace(part.task, agent_name="tools")
            for part in some
        ]
        played += run_episodes(
            Players(some), tasks, domain=domain, limits=LIMITS, seeds=range(len(some)),
        )  # fmt: skip
    return [replace(trajectory, seed=0) for trajectory in played]


def expert_part(domain: ExpertDomain, task: Task, watch: Recorder, *, is_flawless: bool = True) -> Part:
    """The expert plays. What it raises loses its episode and is noted, as `expert`."""

    def make() -> Player:
        expert = _noted(
            lambda: domain.expert(
                task, seed=EXPERT_SEED, is_flawless=is_flawless, reasoning_frac=0.0 if is_flawless else 1.0
            )
        )
        return lambda messages: _noted(lambda: expert.reply(messages))

    def _noted(ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except Exception as error:  # somebody's own code
            watch.note("expert", task, error)
            raise AgentFailed(f"the expert raised {type(error).__name__}: {reason(error)}") from error

    return Part(task, make)


def recital(task: Task, lines: Sequence[Message]) -> Part:
    """Says the lines in their order, and nothing after them."""

    def make() -> Player:
        left = iter(lines)
        return lambda _: next(left, None)

    return Part(task, make)


def silent(task: Task) -> Part:
    """Says nothing, several times where somebody answers that."""
    return recital(task, [say("")] * NUM_EMPTY)


# The adversaries: the lines of each, of the gold play; None where it would be the gold play itself.


def calls_every_tool(task: Task, gold: Sequence[Message], tools: Mapping[str, Tool]) -> list[Message] | None:
    """Every offered tool that gold does not need, before gold's first call."""
    others = every_other_tool(task, gold, tools)
    if not others:
        return None
    first = next((at for at, message in enumerate(gold) if message.tool_calls), len(gold) - 1)
    return [*gold[:first], *others, *gold[first:]]


def says_it_without_calls(task: Task, gold: Sequence[Message], tools: Mapping[str, Tool]) -> list[Message] | None:
    """All that gold said, and none of what it did."""
    del task, tools
    return [message for message in gold if not message.tool_calls] if _has_calls(gold) else None


def says_the_end_alone(task: Task, gold: Sequence[Message], tools: Mapping[str, Tool]) -> list[Message] | None:
    """Gold's last words at once."""
    del task, tools
    return [replace(gold[-1], tool_calls=())] if _has_calls(gold) else None


def repeats_every_call(task: Task, gold: Sequence[Message], tools: Mapping[str, Tool]) -> list[Message] | None:
    del task, tools
    return [message for line in gold for message in [line] * (1 + bool(line.tool_calls))] if _has_calls(gold) else None


def malforms_every_call(task: Task, gold: Sequence[Message], tools: Mapping[str, Tool]) -> list[Message] | None:
    """Each call's arguments without their last character."""
    del task, tools
    return (
        [replace(line, tool_calls=tuple(map(_cut_off, line.tool_calls))) for line in gold] if _has_calls(gold) else None
    )


ADVERSARIES = {
    "who calls every other tool too": calls_every_tool,
    "who says what gold says and calls nothing": says_it_without_calls,
    "who says gold's last words alone": says_the_end_alone,
    "who makes every call of gold twice": repeats_every_call,
    "who malforms every call of gold": malforms_every_call,
}


def every_other_tool(task: Task, gold: Sequence[Message], tools: Mapping[str, Tool]) -> list[Message]:
    """A call of each offered tool that gold does not call, with gold's arguments where the names
    fit, or with any that the schema accepts."""
    calls = [made for message in gold for made in message.tool_calls]
    known: dict[str, Any] = {}
    for made in calls:
        known = {**_read(made), **known}
    needed = {made.name for made in calls}
    return [
        call(name, made_arguments(tools[name], known)) for name in task.tools if name not in needed and name in tools
    ]


def made_arguments(tool: Tool, known: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments for each parameter that is required, and for any other that is known."""
    properties = tool.parameters.get("properties", {})
    required = tool.parameters.get("required", ())
    return {
        name: known[name] if name in known else _example(schema)
        for name, schema in properties.items()
        if name in required or name in known
    }


def gold_lines(trajectory: Trajectory) -> list[Message]:
    """What the agent wrote in it."""
    return [message for _, message in agent_messages(trajectory)]


def _example(schema: Mapping[str, Any]) -> Any:
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    if listed := schema.get("enum") or schema.get("examples"):
        return listed[0]
    if either := schema.get("anyOf") or schema.get("oneOf"):
        return _example(either[0])
    kind = schema.get("type", "string")
    kind = kind[0] if isinstance(kind, list) and kind else kind
    if kind == "array":
        return [_example(schema.get("items", {}))] * int(schema.get("minItems", 0))
    if kind == "object":
        required = schema.get("required", ())
        return {name: _example(own) for name, own in schema.get("properties", {}).items() if name in required}
    return {"integer": schema.get("minimum", 1), "number": schema.get("minimum", 1), "boolean": True, "null": None}.get(
        kind, "a"
    )


def _has_calls(gold: Sequence[Message]) -> bool:
    return any(message.tool_calls for message in gold)


def _cut_off(made: ToolCall) -> ToolCall:
    return replace(made, arguments=made.arguments[:-1])


def _read(made: ToolCall) -> dict[str, Any]:
    try:
        arguments = json.loads(made.arguments)
    except (ValueError, RecursionError):
        return {}
    return arguments if isinstance(arguments, dict) else {}
