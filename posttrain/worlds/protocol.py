"""The interface of a world: tasks, tools that an agent may call, a user who may answer, and a
grade.

A domain is made once per process from `params.yaml`; a `World` is made fresh for every episode, so
that no episode sees what another did. Everything is deterministic in (domain seed, task): a
replayed episode meets the same world. Each optional part is a protocol of its own.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from posttrain.types import JsonValue, Message, Outcome, Split, Task, Trajectory
from posttrain.worlds.tools import Tool


class WorldFailed(Exception):
    """The world is broken or gone (a server that does not answer): the episode says nothing about
    the agent, and is aborted. Any of a world's methods may raise it."""


@dataclass(frozen=True, slots=True)
class Delegation:
    """Work for another policy, which a tool gives in place of a result. `task` opens a conversation
    with `tools`, `report` takes its last words (empty for none) and gives the tool's result."""

    task: Task
    tools: Mapping[str, Tool]
    report: Callable[[str], JsonValue]


class World(Protocol):
    """The state of one episode."""

    def tools(self) -> Mapping[str, Tool]:
        """The tools by name, also those that are only announced in the conversation."""
        ...

    def user_reply(self, message: Message) -> str | Awaitable[str | None] | None:
        """The user's answer to an assistant message without a call; None ends the episode."""
        ...

    def grade(self, trajectory: Trajectory) -> Outcome | Awaitable[Outcome]:
        """The outcome of the episode, from its record and the state that it left. Called once,
        before `close`, however the episode ended; not where it was aborted."""
        ...


@runtime_checkable
class OpeningWorld(World, Protocol):
    """A world that speaks first: a simulated user, an environment's first observation."""

    def opening(self) -> Sequence[Message] | Awaitable[Sequence[Message]]:
        """The messages that follow the task's own; called once, before the agent's first turn."""
        ...


@runtime_checkable
class EndingWorld(World, Protocol):
    """A world that can be over before the agent is done."""

    def is_over(self) -> bool:
        """Asked once after the results of each turn, and where the user has no reply."""
        ...


@runtime_checkable
class ClosableWorld(World, Protocol):
    """A world with something to release: a connection, a process, a file."""

    async def close(self) -> None:
        """Called once, however the episode ended, also where nothing was opened yet."""
        ...


@runtime_checkable
class DescribedWorld(World, Protocol):
    """A world that shows its state to a person."""

    def describe(self) -> str:
        """The state as it is now, as text; changes nothing."""
        ...


class Expert(Protocol):
    """A scripted agent for one episode; it decides from the conversation alone."""

    def reply(self, messages: Sequence[Message]) -> Message:
        """The next assistant message after `messages` (opening messages included)."""
        ...


class Domain(Protocol):
    """A kind of world with its tasks. `tools` has all by name; a task offers some of them."""

    name: str
    tools: Mapping[str, Tool]

    def tasks(self, split: Split, count: int) -> list[Task]:
        """The first `count` tasks of a split; none of `test_paraphrase` where the world has no
        other phrasing. A longer list begins with the shorter one. Raises ValueError where the split
        has fewer."""
        ...

    def open(self, task: Task) -> World:
        """A fresh world for one episode of `task`."""
        ...


@runtime_checkable
class PhrasedDomain(Domain, Protocol):
    """A domain with splits besides those of `SPLITS`: more phrasings of its dev and test tasks."""

    more_splits: Sequence[Split]


@runtime_checkable
class ScoringDomain(Domain, Protocol):
    """A domain whose outcomes have scores besides the general ones (`grading.GENERAL_SCORES`)."""

    scores: Sequence[str]


@runtime_checkable
class CostlyDomain(ScoringDomain, Protocol):
    """A domain some of whose scores are costs: harm done, at 1, whether or not the goal was
    reached."""

    costs: Sequence[str]


@runtime_checkable
class DelegatingDomain(Domain, Protocol):
    """A domain whose sub-agents may be a policy, too (`agent.worker`)."""

    def with_worker(self) -> "StaffedDomain":
        """The same whose tools give a Delegation, and whose expert plays its tasks as well."""
        ...


@runtime_checkable
class StaffedDomain(Domain, Protocol):
    """A domain whose sub-agents are a policy. `worker_failures`: the classes of failures that they
    caused."""

    worker_failures: Sequence[str]


@runtime_checkable
class ExpertDomain(Domain, Protocol):
    def expert(self, task: Task, *, seed: int, is_flawless: bool, reasoning_frac: float) -> Expert:
        """An agent for `task`. A flawless one (the gold) succeeds strictly on every task. The
        other's mistakes, and whether either reasons, are drawn from `seed`: each mistake with the
        rate of the world's knobs, where the task gives the occasion."""
        ...


@runtime_checkable
class RegeneratingDomain(Domain, Protocol):
    def regenerate(self, task: Task, *, seed: int) -> Task:
        """The same question about other entities of the same split: equal labels and template."""
        ...


@runtime_checkable
class GoalDomain(Domain, Protocol):
    def describe_goal(self, task: Task) -> str:
        """The goal in one line for a reader: `12.50 EUR, by get_price(code=4711.B)`."""
        ...
