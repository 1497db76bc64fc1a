"""A domain that notes what its worlds do: how long each call took, what was raised and by which
method, what was graded. An exception costs its own episode, and no other."""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from inspect import isawaitable
from typing import Any

from posttrain.runtime.limits import clip
from posttrain.types import Message, Outcome, Split, Task, Trajectory
from posttrain.worlds.protocol import ClosableWorld, Domain, EndingWorld, OpeningWorld, World, WorldFailed
from posttrain.worlds.tools import Tool, tool_from

OPTIONAL_OF_WORLDS: Mapping[str, type] = {"opening": OpeningWorld, "is_over": EndingWorld, "close": ClosableWorld}


@dataclass(frozen=True, slots=True)
class Problem:
    """`method` of `task_id`'s world did what `text` says. `is_gone`: it raised WorldFailed."""

    method: str
    task_id: str
    text: str
    is_gone: bool = False


@dataclass(frozen=True, slots=True)
class Graded:
    """An outcome as the world gave it, before the general scores were added."""

    trajectory: Trajectory
    outcome: Outcome


@dataclass(slots=True)
class Recorder:
    """What was noted. `offered` are the tools of the worlds, `has` the optional methods that a
    world had."""

    problems: list[Problem] = field(default_factory=list)
    graded: list[Graded] = field(default_factory=list)
    open_s: list[float] = field(default_factory=list)
    grade_s: list[float] = field(default_factory=list)
    offered: dict[str, Tool] = field(default_factory=dict)
    has: set[str] = field(default_factory=set)

    def note(self, method: str, task: Task, what: str | Exception) -> WorldFailed:
        """The problem is kept; what comes back may be raised, to lose the episode."""
        text = what if isinstance(what, str) else f"raised {type(what).__name__}: {clip(str(what), 300)}"
        self.problems.append(Problem(method, task.task_id, text, isinstance(what, WorldFailed)))
        return WorldFailed(f"{method} {text}")

    def first(self, *methods: str) -> Problem | None:
        """The first problem of one of these methods."""
        return next((problem for problem in self.problems if problem.method in methods), None)


class WatchedDomain:
    """As the domain, but that every world is watched."""

    def __init__(self, domain: Domain, watch: Recorder) -> None:
        self._domain = domain
        self._watch = watch
        self.name = domain.name
        self.tools: Mapping[str, Tool] = domain.tools

    def tasks(self, split: Split, count: int) -> list[Task]:
        return self._domain.tasks(split, count)

    def open(self, task: Task) -> "WatchedWorld":
        """Never raises: the episode of a world that cannot be opened is lost at its beginning."""
        watch, world, tools, failure = self._watch, None, {}, None
        start = time.perf_counter()
        try:
            world = self._domain.open(task)
            watch.open_s.append(time.perf_counter() - start)
            tools = dict(world.tools())
        except Exception as error:  # somebody's own code
            failure = watch.note("open" if world is None else "tools", task, error)
        watch.offered |= tools
        watch.has |= {name for name, protocol in OPTIONAL_OF_WORLDS.items() if isinstance(world, protocol)}
        if failure is None and (missing := [name for name in task.tools if name not in tools]):
            failure = watch.note(
                "tools", task, f"has no {missing[0]!r}, which the task offers, but {', '.join(tools) or 'none'}"
            )
        tools |= {name: replace(tool_from(_absent), name=name) for name in task.tools if name not in tools}
        return WatchedWorld(world, task, watch, tools, failure)


class WatchedWorld:
    """Has every optional method, and does nothing where the world has none of its own."""

    def __init__(
        self, world: World | None, task: Task, watch: Recorder, tools: Mapping[str, Tool], failure: WorldFailed | None
    ) -> None:
        self._world = world
        self._task = task
        self._watch = watch
        self._tools = tools
        self._failure = failure

    def tools(self) -> Mapping[str, Tool]:
        return self._tools

    async def opening(self) -> Sequence[Message]:
        if self._failure is not None:
            raise self._failure
        if not isinstance(self._world, OpeningWorld):
            return ()
        said = await self._called("opening", self._world.opening)
        if not isinstance(said, Sequence) or not all(isinstance(message, Message) for message in said):
            raise self._wrong("opening", said, "a sequence of Message")
        return said

    async def user_reply(self, message: Message) -> str | None:
        assert self._world is not None
        answer = await self._called("user_reply", self._world.user_reply, message)
        if answer is not None and not isinstance(answer, str):
            raise self._wrong("user_reply", answer, "a text or None")
        return answer

    def is_over(self) -> bool:
        if not isinstance(self._world, EndingWorld):
            return False
        try:
            answer = self._world.is_over()
        except Exception as error:  # somebody's own code
            raise self._watch.note("is_over", self._task, error) from error
        if not isinstance(answer, bool):
            raise self._wrong("is_over", answer, "True or False")
        return answer

    async def grade(self, trajectory: Trajectory) -> Outcome:
        assert self._world is not None
        start = time.perf_counter()
        outcome = await self._called("grade", self._world.grade, trajectory)
        self._watch.grade_s.append(time.perf_counter() - start)
        if not isinstance(outcome, Outcome):
            raise self._wrong("grade", outcome, "an Outcome")
        self._watch.graded.append(Graded(trajectory, outcome))
        return outcome

    async def close(self) -> None:
        if not isinstance(self._world, ClosableWorld):
            return
        try:
            closing: object = self._world.close()
            if not isawaitable(closing):
                self._wrong("close", closing, "what can be awaited: `async def close`")
                return
            await closing
        except Exception as error:  # somebody's own code
            self._watch.note("close", self._task, error)

    async def _called(self, method: str, function: Callable[..., Any], *arguments: object) -> Any:
        try:
            answer: Awaitable[Any] | Any = function(*arguments)
            return await answer if isawaitable(answer) else answer
        except Exception as error:  # somebody's own code
            raise self._watch.note(method, self._task, error) from error

    def _wrong(self, method: str, given: object, wanted: str) -> WorldFailed:
        return self._watch.note(method, self._task, f"gave {type(given).__name__} and must give {wanted}")


def _absent() -> str:
    """Stands for a tool that is not there, in an episode that is lost before it begins."""
    raise AssertionError("a world that could not be opened was played")
