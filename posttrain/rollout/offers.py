"""Tools that an episode offers out of many: the nearest to the question, or those that the agent
searches for.

The world's own tools stand among those of a catalogue. `retrieved` settles a task's tools where it
is drawn, so that demonstrations, rows and play see the same ones. With `search` the task offers
`search_tools` alone, and the episode goes on with what was found. The call of a tool that was not
shown is an error that the agent reads; a tool of the catalogue that the world does not have says so
when it is called.
"""

from collections import ChainMap, Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from inspect import isawaitable
from typing import Any

from posttrain.retrieval.retriever import Retriever, load_retriever
from posttrain.rollout.agent_loops import tools as play
from posttrain.rollout.episode import Episode
from posttrain.rollout.episodes import run_episode, run_episodes
from posttrain.rollout.params import AgentParams, OfferedTools, SearchedTools
from posttrain.rollout.policy import Codec, expert_policy
from posttrain.runtime.exits import ConfigurationError
from posttrain.types import JsonValue, Message, Outcome, Split, Task, Trajectory
from posttrain.worlds.catalog import make_domain
from posttrain.worlds.made_calls import agent_messages, calls_made
from posttrain.worlds.params import WorldParams
from posttrain.worlds.protocol import (
    ClosableWorld,
    DelegatingDomain,
    Domain,
    EndingWorld,
    Expert,
    ExpertDomain,
    OpeningWorld,
    RegeneratingDomain,
    StaffedDomain,
    World,
)
from posttrain.worlds.scripts import call as one_call
from posttrain.worlds.scripts import say
from posttrain.worlds.tools import Tool, ToolError, json_or_text, tool_from

SEARCH = "search_tools"
NOT_RETRIEVED = "tool_not_retrieved"  # the failure class of an episode that was not shown a tool it needs
NO_TOOL = "No tool here can do that."  # the expert's words where it was not shown one it needs
_SEED = 0  # of a flawless expert that does not reason: nothing is drawn


def open_domain(world: WorldParams, agent: AgentParams) -> Domain:
    """The domain of a section, which offers tools as `agent.tools` says, and whose sub-agents are
    as `agent.worker` says. Raises ConfigurationError where there is no retriever yet, or nobody to
    delegate to."""
    return with_offers(make_domain(world), agent)


def with_offers(domain: Domain, agent: AgentParams) -> Domain:
    """The same of a domain that was made already."""
    if agent.worker is not None:
        return staffed(domain)
    return domain if isinstance(agent.tools, OfferedTools) else OfferingDomain(domain, load_retriever(), agent)


def staffed(domain: Domain) -> StaffedDomain:
    """The domain whose sub-agents are a policy. Raises ConfigurationError where it has none."""
    if isinstance(domain, DelegatingDomain):
        return domain.with_worker()
    raise ConfigurationError(f"agent.worker is set and the world {domain.name} delegates nothing: set it to null")


def needed_tools(domain: ExpertDomain, tasks: Sequence[Task], limits: AgentParams) -> list[tuple[str, ...]]:
    """The tools that the flawless expert calls in each task, in the order of their first call."""
    expert = expert_policy(domain, is_flawless=True, reasoning_frac=0.0)
    return [
        _called(one) for one in run_episodes(expert, tasks, domain=domain, limits=limits, seeds=[_SEED] * len(tasks))
    ]


def question_of(task: Task) -> str:
    """The text by which a task's tools are retrieved: the user's last message."""
    return next((message.content for message in reversed(task.messages) if message.role == "user"), "")


class OfferingDomain:
    """A domain whose tasks offer some of its own and a retriever's tools. It has the optional parts
    that the domain has."""

    def __init__(self, domain: Domain, retriever: Retriever, limits: AgentParams) -> None:
        self.name, self._domain, self._retriever, self._limits = domain.name, domain, retriever, limits
        self.is_search = isinstance(limits.tools, SearchedTools)
        described = {
            tool.name: Tool(tool.name, tool.description, tool.schema["function"].get("parameters", {}), _absent)
            for tool in retriever.tools
        }
        search = {SEARCH: _search_tool(lambda _: [])} if self.is_search else {}
        self.tools: Mapping[str, Tool] = {**described, **domain.tools, **search}
        self.absent = {name: replace(tool, function=_absent, is_instant=True) for name, tool in self.tools.items()}
        for part in ("scores", "costs", "more_splits", "describe_goal"):
            if hasattr(domain, part):
                setattr(self, part, getattr(domain, part))
        if isinstance(domain, ExpertDomain):
            self.expert = partial(self._expert, domain)
        if isinstance(domain, RegeneratingDomain):
            self.regenerate = partial(self._regenerate, domain)

    def tasks(self, split: Split, count: int) -> list[Task]:
        tasks = self._domain.tasks(split, count)
        offers = [(SEARCH,)] * len(tasks) if self.is_search else self.nearest(list(map(question_of, tasks)))
        return [replace(task, tools=offer) for task, offer in zip(tasks, offers, strict=True)]

    def open(self, task: Task) -> World:
        return OfferingWorld(task, self)

    def open_own(self, task: Task) -> World:
        """The world itself, which knows its own tools alone."""
        return self._domain.open(self._own(task))

    def nearest(self, questions: Sequence[str]) -> list[tuple[str, ...]]:
        assert not isinstance(self._limits.tools, OfferedTools)
        return self._retriever.nearest(questions, self._limits.tools.k)

    async def needed(self, task: Task) -> tuple[str, ...]:
        """The tools that the flawless expert calls where the world offers all of its own; none of a
        world without an expert."""
        if not isinstance(self._domain, ExpertDomain):
            return ()
        expert = expert_policy(self._domain, is_flawless=True, reasoning_frac=0.0)
        world = self._domain.open(replace(task, tools=tuple(self._domain.tools)))
        whole = replace(task, tools=tuple(world.tools()))
        episode = Episode(f"{task.task_id}/needed", whole, world, _SEED, self._limits)
        return _called(await run_episode(episode, expert, play))

    def _own(self, task: Task) -> Task:
        names = self._domain.tools if self.is_search else (one for one in task.tools if one in self._domain.tools)
        return replace(task, tools=tuple(names))

    def _expert(self, domain: ExpertDomain, task: Task, **how: Any) -> Expert:
        return OfferedExpert(domain.expert(self._own(task), **how), task, self.tools)

    def _regenerate(self, domain: RegeneratingDomain, task: Task, *, seed: int) -> Task:
        """The question's template is the same, and so are the tools that it needs."""
        return replace(domain.regenerate(self._own(task), seed=seed), tools=task.tools)


class OfferingWorld:
    """One episode of a world behind the tools that the agent was shown."""

    def __init__(self, task: Task, domain: OfferingDomain) -> None:
        self._task, self._domain, self._world = task, domain, domain.open_own(task)
        self._all: Mapping[str, Tool] = ChainMap(dict(self._world.tools()), domain.absent)
        self._shown = {name: self._all[name] for name in task.tools if name != SEARCH}
        if SEARCH in task.tools:
            self._shown[SEARCH] = _search_tool(self._search)
        self.user_reply = self._world.user_reply

    def tools(self) -> Mapping[str, Tool]:
        """Those shown so far: a search adds to this very mapping."""
        return self._shown

    async def opening(self) -> Sequence[Message]:
        own = self._world.opening() if isinstance(self._world, OpeningWorld) else ()
        return await own if isawaitable(own) else own

    def is_over(self) -> bool:
        return isinstance(self._world, EndingWorld) and self._world.is_over()

    async def grade(self, trajectory: Trajectory) -> Outcome:
        """The world's own, of the episode without its searches: they earn and cost nothing."""
        graded = self._world.grade(_without_searches(trajectory))
        outcome = await graded if isawaitable(graded) else graded
        if outcome.turn_scores:
            kept, scores = {place for place, _ in _kept(trajectory.messages)}, iter(outcome.turn_scores)
            own = (next(scores, 0.0) if place in kept else 0.0 for place, _ in agent_messages(trajectory))
            outcome = replace(outcome, turn_scores=tuple(own))
        if not outcome.success and set(await self._domain.needed(self._task)) - self._shown.keys():
            return replace(outcome, failure=NOT_RETRIEVED)
        return outcome

    async def close(self) -> None:
        if isinstance(self._world, ClosableWorld):
            await self._world.close()

    def _search(self, query: str) -> list[JsonValue]:
        [names] = self._domain.nearest([query])
        self._shown.update((name, self._all[name]) for name in names)
        return [self._all[name].schema()["function"] for name in names]


class OfferedExpert:
    """An expert that calls what it was shown. It searches for another tool by the user's words, and
    where they do not find it by its description; where nothing shows it, it says so and ends."""

    def __init__(self, expert: Expert, task: Task, tools: Mapping[str, Tool]) -> None:
        self._expert, self._task, self._tools = expert, task, tools
        self._next: Message | None = None
        self._asked: set[str] = set()

    def reply(self, messages: Sequence[Message]) -> Message:
        message = self._next or self._expert.reply([one for _, one in _kept(messages)])
        self._next = None
        shown = {*self._task.tools, *_names_found(messages)}
        lacking = [call.name for call in message.tool_calls if call.name in self._tools and call.name not in shown]
        if not lacking:
            return message
        said = [one.content for one in messages if one.role == "user"][-1:]
        for query in (*said, self._tools[lacking[0]].description) if SEARCH in shown else ():
            if query not in self._asked:
                self._next = message
                self._asked.add(query)
                return one_call(SEARCH, {"query": query})
        return say(NO_TOOL)


def tokens_of_tools(
    codec: Codec, domain: OfferingDomain, tasks: Sequence[Task], played: Sequence[Trajectory]
) -> dict[str, float]:
    """Mean tokens in an episode's context that describe tools, those found by searches included,
    beside as many as the schemas of all tools would take in each."""

    def in_prompt(names: Iterable[str]) -> int:
        schemas = [domain.tools[name].schema() for name in names]
        return len(codec.encode_prompt(opening, schemas)) - without

    opening = [Message("user", "?")]
    without = len(codec.encode_prompt(opening, []))
    offers = Counter(task.tools for task in tasks)
    offered = sum(in_prompt(names) * count for names, count in offers.items())
    found = [_found(one.messages) for one in played]
    searched = sum(len(codec.encode_results(messages, ())) for messages in found if messages)
    return {
        "num_tools": len(domain.tools),
        "tokens_per_episode": (offered + searched) / len(tasks),
        "tokens_of_all_tools": in_prompt(domain.tools),
    }


def _search_tool(search: Callable[[str], list[JsonValue]]) -> Tool:
    def search_tools(query: str) -> JsonValue:
        """Find tools by what they do. A tool can be called once it was found.

        Args:
            query: what the tool should do
        """
        return search(query)

    return tool_from(search_tools, is_instant=True, side_effect="none")


def _absent(**_: Any) -> JsonValue:
    raise ToolError("this tool does not answer here: choose another")


def _called(trajectory: Trajectory) -> tuple[str, ...]:
    return tuple(dict.fromkeys(made.name for made in calls_made(trajectory)))


def _kept(messages: Sequence[Message]) -> list[tuple[int, Message]]:
    """The messages with their places, without searches and what they found."""
    ids, found = _search_ids(messages), []
    for place, message in enumerate(messages):
        calls = tuple(call for call in message.tool_calls if call.id not in ids)
        if message.tool_call_id not in ids and (calls or not message.tool_calls):
            found.append((place, replace(message, tool_calls=calls)))
    return found


def _without_searches(trajectory: Trajectory) -> Trajectory:
    kept = _kept(trajectory.messages)
    place_of = {before: place for place, (before, _) in enumerate(kept)}
    turns = [
        turn if turn.message_index is None else replace(turn, message_index=place_of[turn.message_index])
        for turn in trajectory.turns
        if turn.message_index is None or turn.message_index in place_of
    ]
    return replace(trajectory, messages=tuple(message for _, message in kept), turns=tuple(turns))


def _found(messages: Sequence[Message]) -> list[Message]:
    """The results of searches."""
    ids = _search_ids(messages)
    return [message for message in messages if message.tool_call_id in ids]


def _search_ids(messages: Sequence[Message]) -> set[str]:
    return {call.id for message in messages for call in message.tool_calls if call.name == SEARCH}


def _names_found(messages: Sequence[Message]) -> set[str]:
    results = [json_or_text(message.content) for message in _found(messages)]
    return {one["name"] for found in results if isinstance(found, list) for one in found if isinstance(one, dict)}
