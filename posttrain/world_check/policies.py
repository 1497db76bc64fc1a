"""The policies that a world is checked with, and their episodes: its expert, an empty one, and
adversaries, which leave out, repeat, add to or spoil the calls that the expert made."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

from posttrain.rewards.total import RuleReward
from posttrain.rollout.agent_loops import AgentFailed
from posttrain.rollout.episode import Episode, Reply
from posttrain.rollout.episodes import run_episodes
from posttrain.rollout.params import AgentParams, NoMemory
from posttrain.runtime.limits import reason
from posttrain.types import Message, StopReason, Task, Trajectory
from posttrain.worlds.made_calls import agent_messages, report_of
from posttrain.worlds.protocol import Domain, ExpertDomain, StaffedDomain
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
    memory=NoMemory(type="none"),
).model_copy(update={"max_aborted_frac": 1.0})

Tools: TypeAlias = Mapping[str, Tool]
EpisodePolicy: TypeAlias = Callable[[Sequence[Message]], Message | None]  # the next message; None ends the episode
Plan: TypeAlias = tuple[Task, Callable[[], EpisodePolicy]]  # an episode to play: its task, the maker of its policy
Staff: TypeAlias = Callable[[Task], EpisodePolicy]  # the policy of what was delegated, by its task


@dataclass(frozen=True, slots=True)
class TaskEpisodes:
    """The scored episodes of one task by policy: `gold` is the flawless expert's, `flawed` the
    other's, `empty`, the adversaries', and where no expert played one that calls every tool."""

    task: Task
    by: Mapping[str, Trajectory]

    @property
    def gold(self) -> Trajectory | None:
        return self.by.get("gold")


class _PlannedPolicy:
    """Plays each planned episode, found by the seed, by its own policy, what it delegates by the
    staff's, and yields to the others before every message, so that their turns interleave."""

    def __init__(self, plans: Sequence[Plan], staff: Staff) -> None:
        self._plans, self._staff = plans, staff
        self._policies: dict[str, EpisodePolicy] = {}

    async def reply(self, episode: Episode) -> Reply:
        await asyncio.sleep(0)
        if episode.episode_id not in self._policies:
            is_own = episode.parent is None
            made = self._plans[episode.seed][1]() if is_own else self._staff(episode.task)
            self._policies[episode.episode_id] = made
        message = self._policies[episode.episode_id](episode.messages)
        return Reply(message, None if message is not None else StopReason.TOKEN_LIMIT)

    def release(self, episode: Episode) -> None:
        self._policies.pop(episode.episode_id, None)


def play(domain: Domain, plans: Sequence[Plan], staff: Staff | None = None) -> list[Trajectory]:
    """One trajectory for each plan; equal episodes give equal trajectories. Without a `staff` what
    is delegated is the flawless expert's."""
    trajectories: list[Trajectory] = []
    for start in range(0, len(plans), MAX_AT_ONCE):
        batch = plans[start : start + MAX_AT_ONCE]
        # An agent that is a program of its own is not what is checked: its tasks are played by
        # calls.
        tasks = [replace(task, agent_name="tools") for task, _ in batch]
        policy = _PlannedPolicy(batch, staff or partial(_expert_of, domain))
        trajectories += run_episodes(policy, tasks, domain=domain, limits=LIMITS, seeds=range(len(batch)))
    return [replace(trajectory, seed=0) for trajectory in trajectories]


def play_all(domain: Domain, tasks: Sequence[Task], rule: RuleReward) -> list[TaskEpisodes]:
    """The episodes of every policy at each task, scored by `rule`."""
    gold: list[Trajectory] = []
    if isinstance(domain, ExpertDomain):
        gold = play(domain, [plan_expert(domain, task) for task in tasks])
    plans: dict[tuple[int, str], Plan] = {}
    for index, task in enumerate(tasks):
        plans[index, "empty"] = (task, partial(replaying, [say("")] * NUM_EMPTY))
        if isinstance(domain, ExpertDomain):
            plans[index, "flawed"] = plan_expert(domain, task, is_flawless=False)
        written = [message for _, message in agent_messages(gold[index])] if gold and not gold[index].is_aborted else []
        if not written:
            plans[index, "calls every tool"] = plan_call_of_every_tool(domain, task)
            continue
        for name, messages in adversaries(task, written, domain.tools).items():
            plans[index, name] = (task, partial(replaying, messages))
    by_staff = _by_other_staff(domain, tasks, gold) if isinstance(domain, StaffedDomain) else {}
    by_task: list[dict[str, Trajectory]] = [{"gold": gold[index]} if gold else {} for index in range(len(tasks))]
    for (index, name), trajectory in zip(plans, play(domain, list(plans.values())), strict=True):
        by_task[index][name] = trajectory
    for name, played in by_staff.items():
        for index, trajectory in enumerate(played):
            by_task[index][name] = trajectory
    return [
        TaskEpisodes(task, {name: rule.score(trajectory, task) for name, trajectory in by.items()})
        for task, by in zip(tasks, by_task, strict=True)
    ]


def _by_other_staff(domain: Domain, tasks: Sequence[Task], gold: Sequence[Trajectory]) -> dict[str, list[Trajectory]]:
    """What the expert says as planner, with workers who say what its workers say and do nothing,
    and with none who says a word; and the expert itself with its flawed workers."""
    plans = [
        (task, partial(replaying, [message for _, message in agent_messages(one)]))
        for task, one in zip(tasks, gold, strict=True)
    ]
    said = {own.messages[:2]: report_of(own.messages) for one in gold for own in one.delegated}

    def idle(task: Task) -> EpisodePolicy:
        return replaying([say(said.get(task.messages[:2], ""))])

    found = {IDLE: play(domain, plans, idle), SILENT: play(domain, plans, lambda _: replaying([say("")]))}
    if isinstance(domain, ExpertDomain):
        flawed = partial(_expert_of, domain, is_flawless=False)
        found["flawed workers"] = play(domain, [plan_expert(domain, task) for task in tasks], flawed)
    return found


def _expert_of(domain: Domain, task: Task, *, is_flawless: bool = True) -> EpisodePolicy:
    assert isinstance(domain, ExpertDomain), "a domain that delegates has an expert"
    return plan_expert(domain, task, is_flawless=is_flawless)[1]()


def plan_expert(domain: ExpertDomain, task: Task, *, is_flawless: bool = True) -> Plan:
    """The world's expert. Whatever it raises aborts its episode as AGENT_FAILED."""

    def ask(method: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        try:
            return method(*arguments, **named)
        except Exception as error:  # the world's own code
            raise AgentFailed(f"the expert raised {type(error).__name__}: {reason(error)}") from error

    def make() -> EpisodePolicy:
        frac = 0.0 if is_flawless else 1.0
        expert = ask(domain.expert, task, seed=EXPERT_SEED, is_flawless=is_flawless, reasoning_frac=frac)
        return partial(ask, expert.reply)

    return task, make


def plan_call_of_every_tool(domain: Domain, task: Task) -> Plan:
    return task, partial(replaying, [*calls_of_other_tools(task, [], domain.tools), say("")])


def replaying(messages: Sequence[Message]) -> EpisodePolicy:
    """Writes these messages in their order, whatever the world answers."""
    left = iter(messages)
    return lambda _: next(left, None)


OF_STAFF = IDLE, SILENT = "has workers who say what the expert's say and call nothing", "has workers who say nothing"
REPEATING = "makes every call of the expert twice"
_CALLS_COUNT = "let grade ask for the calls, not for the words alone"
# "the adversary that …": what to do where it earns as much as the expert
REMEDIES = {
    "also calls every other tool": "count calls that the goal does not accept in strict_success",
    "says what the expert says and calls nothing": _CALLS_COUNT,
    "says the expert's last message alone": _CALLS_COUNT,
    REPEATING: 'give tools that only read side_effect="none", or count the second call',
    "malforms every call of the expert": "let grade ask what calls came to, not that they were made",
    IDLE: "let a report count by what was done, not by its words alone",
    SILENT: "let grade ask for the reports of what was delegated",
}


def adversaries(task: Task, gold: Sequence[Message], tools: Tools) -> dict[str, list[Message]]:
    """The messages of each adversary, made of the expert's (`gold`) and different from them."""
    first = next((at for at, message in enumerate(gold) if message.tool_calls), len(gold) - 1)
    also_others = [*gold[:first], *calls_of_other_tools(task, gold, tools), *gold[first:]]
    found = {"also calls every other tool": also_others}
    if any(message.tool_calls for message in gold):
        found |= {
            "says what the expert says and calls nothing": [message for message in gold if not message.tool_calls],
            "says the expert's last message alone": [replace(gold[-1], tool_calls=())],
            REPEATING: [one for message in gold for one in [message] * (1 + bool(message.tool_calls))],
            "malforms every call of the expert": [_malformed(message) for message in gold],
        }
    return {name: written for name, written in found.items() if written != list(gold)}


def _malformed(message: Message) -> Message:
    """Cuts the last character off the arguments of each call."""
    return replace(message, tool_calls=tuple(replace(one, arguments=one.arguments[:-1]) for one in message.tool_calls))


def calls_of_other_tools(task: Task, gold: Sequence[Message], tools: Tools) -> list[Message]:
    """A call of each offered tool that `gold` does not call, with its arguments where named so."""
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
