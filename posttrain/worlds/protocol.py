"""What a world must offer to be trained on: tasks, tools that an agent may call, a user who may
answer, and an expert who can do it.

A domain is made once per process from `params.yaml`; a `World` is made fresh for every episode, so
that no episode sees what another did. Everything is deterministic in (domain seed, task): a
replayed episode meets the same world.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from posttrain.params import FlawRates
from posttrain.types import Message, Split, Task
from posttrain.worlds.tools import Tool


class World(Protocol):
    """The state of one episode."""

    def tools(self) -> Mapping[str, Tool]:
        """The tools bound to this episode, by name: exactly those that the task offers."""
        ...

    def user_reply(self, message: Message) -> str | None:
        """What the user answers to an assistant message without a call; None ends the episode."""
        ...


@runtime_checkable
class ClosableWorld(World, Protocol):
    """A world that holds something that must be given back: a connection, a process, a file."""

    async def close(self) -> None:
        """The episode is over; called once, however it ended, also where nothing was opened yet."""
        ...


class Expert(Protocol):
    """A scripted agent for one task, made fresh per episode; it decides from the conversation
    alone."""

    def reply(self, messages: Sequence[Message]) -> Message:
        """The next assistant message after `messages` (opening messages included)."""
        ...


class Domain(Protocol):
    """A kind of world with its tasks. `tools` holds every tool of the domain by name; a task offers
    some of them."""

    name: str
    tools: Mapping[str, Tool]

    def tasks(self, split: Split, count: int) -> list[Task]:
        """The first `count` tasks of a split. A longer list begins with the shorter one. Raises
        ValueError where the split cannot give as many."""
        ...

    def open(self, task: Task) -> World:
        """A fresh world for one episode of `task`."""
        ...

    def expert(self, task: Task, *, seed: int, flaws: FlawRates | None, reasoning_frac: float) -> Expert:
        """A player of `task`. Without flaws it is the gold: it succeeds on every task. With flaws
        its mistakes, and whether it reasons, are drawn from `seed`: a mistake happens with its rate
        where the task gives the occasion."""
        ...

    def realise_anew(self, task: Task, *, seed: int) -> Task:
        """The same question about other companies, dates and values of the same split: equal kind,
        market, language, difficulty, template."""
        ...
