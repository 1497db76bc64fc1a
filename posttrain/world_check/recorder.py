"""Wraps a domain and records what its worlds do: what was raised by which method, and each
outcome. An exception aborts its own episode and no other."""

from collections.abc import Mapping, Sequence
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
    """`method` of the world of `task_id` did what `text` says. `is_gone`: it raised WorldFailed."""

    method: str
    task_id: str
    text: str
    is_gone: bool = False


@dataclass(slots=True)
class Recorder:
    """The record. `graded` has the outcomes as the worlds returned them, before the general scores
    were added; `offered` the tools of the worlds, `has` the optional methods that a world had."""

    problems: list[Problem] = field(default_factory=list)
    graded: list[tuple[Trajectory, Outcome]] = field(default_factory=list)
    offered: dict[str, Tool] = field(default_factory=dict)
    has: set[str] = field(default_factory=set)

    def record(self, method: str, task: Task, what: str | Exception) -> WorldFailed:
        """Keeps the problem, and returns an exception that aborts the episode when it is raised."""
        text = what if isinstance(what, str) else f"raised {type(what).__name__}: {clip(str(what), 300)}"
        self.problems.append(Problem(method, task.task_id, text, isinstance(what, WorldFailed)))
        return WorldFailed(f"{method} {text}")

    def first(self, *methods: str) -> Problem | None:
        """The first problem of one of these methods."""
        return next((problem for problem in self.problems if problem.method in methods), None)


class RecordedDomain:
    """The domain, with every world wrapped in a RecordedWorld."""

    def __init__(self, domain: Domain, recorder: Recorder) -> None:
        self._domain, self._recorder = domain, recorder
        self.name = domain.name
        self.tools: Mapping[str, Tool] = domain.tools

    def tasks(self, split: Split, count: int) -> list[Task]:
        return self._domain.tasks(split, count)

    def open(self, task: Task) -> "RecordedWorld":
        """Never raises: the episode of a world that cannot be opened is aborted at its opening."""
        recorder, world, tools, failure = self._recorder, None, {}, None
        try:
            world = self._domain.open(task)
            tools = dict(world.tools())
        except Exception as error:  # the world's own code
            failure = recorder.record("open" if world is None else "tools", task, error)
        recorder.offered |= tools
        recorder.has |= {name for name, protocol in OPTIONAL_OF_WORLDS.items() if isinstance(world, protocol)}
        if failure is None and (missing := [name for name in task.tools if name not in tools]):
            known = ", ".join(tools) or "none"
            failure = recorder.record("tools", task, f"has no {missing[0]!r}, which the task offers, but {known}")
        tools |= {name: replace(tool_from(_absent), name=name) for name in task.tools if name not in tools}
        return RecordedWorld(world, task, recorder, tools, failure)


class RecordedWorld:
    """Has every optional method; it does nothing where the world has none of its own."""

    def __init__(
        self,
        world: World | None,
        task: Task,
        recorder: Recorder,
        tools: Mapping[str, Tool],
        failure: WorldFailed | None,
    ) -> None:
        self._world, self._task, self._recorder = world, task, recorder
        self._tools, self._failure = tools, failure

    def tools(self) -> Mapping[str, Tool]:
        return self._tools

    async def opening(self) -> Sequence[Message]:
        if self._failure is not None:
            raise self._failure
        if not isinstance(self._world, OpeningWorld):
            return ()
        opening: Sequence[Message] = await self._called("opening")
        is_right = isinstance(opening, Sequence) and all(isinstance(message, Message) for message in opening)
        self._require(is_right, "opening", opening, "a sequence of Message")
        return opening

    async def user_reply(self, message: Message) -> str | None:
        reply: str | None = await self._called("user_reply", message)
        self._require(isinstance(reply, str | None), "user_reply", reply, "a text or None")
        return reply

    def is_over(self) -> bool:
        if not isinstance(self._world, EndingWorld):
            return False
        try:
            answer = self._world.is_over()
        except Exception as error:  # the world's own code
            raise self._recorder.record("is_over", self._task, error) from error
        self._require(isinstance(answer, bool), "is_over", answer, "True or False")
        return answer

    async def grade(self, trajectory: Trajectory) -> Outcome:
        outcome: Outcome = await self._called("grade", trajectory)
        self._require(isinstance(outcome, Outcome), "grade", outcome, "an Outcome")
        self._recorder.graded.append((trajectory, outcome))
        return outcome

    async def close(self) -> None:
        if not isinstance(self._world, ClosableWorld):
            return
        try:
            closing: Any = self._world.close()
            self._require(isawaitable(closing), "close", closing, "an awaitable: write `async def close`")
            await closing
        except Exception as error:  # the world's own code
            self._recorder.record("close", self._task, error)

    async def _called(self, method: str, *arguments: object) -> Any:
        try:
            answer = getattr(self._world, method)(*arguments)
            return await answer if isawaitable(answer) else answer
        except Exception as error:  # the world's own code
            raise self._recorder.record(method, self._task, error) from error

    def _require(self, is_right: bool, method: str, given: object, wanted: str) -> None:
        if not is_right:
            raise self._recorder.record(method, self._task, f"gave {type(given).__name__} and must give {wanted}")


def _absent() -> str:
    """Placeholder of a missing tool; its episode is aborted before it can be called."""
    raise AssertionError("an episode was played in a world that could not be opened")
