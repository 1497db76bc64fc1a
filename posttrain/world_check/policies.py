"""The policies that a world is checked with: its expert, an empty one, and adversaries, which leave
out, repeat, add to or spoil the calls that the expert made."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from posttrain.rollout.agent_loops import AgentFailed
from posttrain.rollout.episode import Episode, Reply
from posttrain.rollout.episodes import run_episodes
from posttrain.rollout.params import AgentParams
from posttrain.runtime.limits import reason
from posttrain.types import Message, StopReason, Task, Trajectory
from posttrain.world_check.recorder import Recorder
from posttrain.worlds.protocol import Domain, Expert, ExpertDomain
from posttrain.worlds.scripts import call, say
from posttrain.worlds.tools import Tool, json_object

MAX_AT_ONCE = 32  # open worlds, each of which may be a process
NUM_EMPTY = 8  # empty messages, for a user who answers every one
EXPERT_SEED = 1
# Wider than any agent's, because the world is checked and not the agent. An aborted episode is a
# finding of its own, so any share of them may be (`AgentParams` itself accepts no 1.0).
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


T = TypeVar("T")
Tools = Mapping[str, Tool]
EpisodePolicy = Callable[[Sequence[Message]], Message | None]  # the next message; None ends the episode


class ReplayPolicy:
    """Writes the given messages in their order, whatever the world answers."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._left = iter(messages)

    def __call__(self, messages: Sequence[Message]) -> Message | None:
        del messages
        return next(self._left, None)


class EmptyPolicy(ReplayPolicy):
    """Writes empty messages, several where somebody answers them."""

    def __init__(self) -> None:
        super().__init__([say("")] * NUM_EMPTY)


class ExpertPolicy:
    """The world's expert. What it raises aborts its episode and is recorded under `expert`."""

    def __init__(self, domain: ExpertDomain, task: Task, recorder: Recorder, *, is_flawless: bool = True) -> None:
        self._task, self._recorder = task, recorder
        frac = 0.0 if is_flawless else 1.0
        self._expert: Expert = self._recorded(
            lambda: domain.expert(task, seed=EXPERT_SEED, is_flawless=is_flawless, reasoning_frac=frac)
        )

    def __call__(self, messages: Sequence[Message]) -> Message:
        return self._recorded(lambda: self._expert.reply(messages))

    def _recorded(self, ask: Callable[[], T]) -> T:
        try:
            return ask()
        except Exception as error:  # the world's own code
            self._recorder.record("expert", self._task, error)
            raise AgentFailed(f"the expert raised {type(error).__name__}: {reason(error)}") from error


@dataclass(frozen=True, slots=True)
class PlannedEpisode:
    """An episode to play: its task, and the maker of its policy."""

    task: Task
    make: Callable[[], EpisodePolicy]


class _PlannedPolicy:
    """Plays each planned episode, found by the seed, by its own policy, and yields to the other
    episodes before every message, so that their turns interleave."""

    def __init__(self, planned: Sequence[PlannedEpisode]) -> None:
        self._planned = planned
        self._policies: dict[str, EpisodePolicy] = {}

    async def reply(self, episode: Episode) -> Reply:
        await asyncio.sleep(0)
        if episode.episode_id not in self._policies:
            self._policies[episode.episode_id] = self._planned[episode.seed].make()
        message = self._policies[episode.episode_id](episode.messages)
        return Reply(message, None if message is not None else StopReason.TOKEN_LIMIT)

    def release(self, episode: Episode) -> None:
        self._policies.pop(episode.episode_id, None)


def play(domain: Domain, planned: Sequence[PlannedEpisode]) -> list[Trajectory]:
    """One trajectory for each planned episode, in their order; equal episodes give equal
    trajectories, whatever their index."""
    trajectories: list[Trajectory] = []
    for start in range(0, len(planned), MAX_AT_ONCE):
        batch = planned[start : start + MAX_AT_ONCE]
        # An agent that is a program of its own is not what is checked: its tasks are played by
        # calls.
        tasks = [replace(one.task, agent_name="tools") for one in batch]
        policy = _PlannedPolicy(batch)
        trajectories += run_episodes(policy, tasks, domain=domain, limits=LIMITS, seeds=range(len(batch)))
    return [replace(trajectory, seed=0) for trajectory in trajectories]


# The adversaries write messages derived from those of the expert's episode (`gold`).


def call_every_tool(task: Task, gold: Sequence[Message], tools: Tools) -> list[Message]:
    """Calls every offered tool that the expert did not, before the expert's first call."""
    first = next((at for at, message in enumerate(gold) if message.tool_calls), len(gold) - 1)
    return [*gold[:first], *calls_of_other_tools(task, gold, tools), *gold[first:]]


def malform_every_call(gold: Sequence[Message]) -> list[Message]:
    """Cuts the last character off the arguments of each call."""
    return [
        replace(message, tool_calls=tuple(replace(made, arguments=made.arguments[:-1]) for made in message.tool_calls))
        for message in gold
    ]


REPEATING = "makes every call of the expert twice"
_CALLS_COUNT = "let grade ask for the calls, not for the words alone"
# "the adversary that …": what to do where it earns as much as the expert
REMEDIES = {
    "also calls every other tool": "count calls that the goal does not accept in strict_success",
    "says what the expert says and calls nothing": _CALLS_COUNT,
    "says the expert's last message alone": _CALLS_COUNT,
    REPEATING: "make tools that only read is_read_only, or count the second call",
    "malforms every call of the expert": "let grade ask what calls came to, not that they were made",
}


def adversaries(task: Task, gold: Sequence[Message], tools: Tools) -> dict[str, list[Message]]:
    """The messages of each adversary, without those that would repeat the expert's episode."""
    found = {"also calls every other tool": call_every_tool(task, gold, tools)}
    if any(message.tool_calls for message in gold):
        found |= {
            "says what the expert says and calls nothing": [message for message in gold if not message.tool_calls],
            "says the expert's last message alone": [replace(gold[-1], tool_calls=())],
            REPEATING: [one for message in gold for one in [message] * (1 + bool(message.tool_calls))],
            "malforms every call of the expert": malform_every_call(gold),
        }
    return {name: written for name, written in found.items() if written != list(gold)}


def calls_of_other_tools(task: Task, gold: Sequence[Message], tools: Tools) -> list[Message]:
    """A call of each offered tool that `gold` does not call, with gold's arguments where the names
    match, or with any that the schema accepts."""
    calls = [made for message in gold for made in message.tool_calls]
    known: dict[str, Any] = {}
    for made in calls:
        known = {**(json_object(made.arguments) or {}), **known}
    needed = {made.name for made in calls}
    return [
        call(name, made_arguments(tools[name], known)) for name in task.tools if name not in needed and name in tools
    ]


def made_arguments(tool: Tool, known: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments for each parameter that is required, and for any other that is known."""
    required = tool.parameters.get("required", ())
    return {
        name: known[name] if name in known else _example(schema)
        for name, schema in tool.parameters.get("properties", {}).items()
        if name in required or name in known
    }


def _example(schema: Mapping[str, Any]) -> Any:
    """A value that the JSON schema accepts, in the common cases."""
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
    number = schema.get("minimum", 1)
    return {"integer": number, "number": number, "boolean": True, "null": None}.get(kind, "a")
