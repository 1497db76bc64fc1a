"""One episode of an entry: tools on instances of its own, and the user's turns one after another.

A function that is added late can be called from the beginning, as in the package. It is announced
in the user's message of its turn and never in the prompt, so that the conversation only grows."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from posttrain.types import JsonValue, Message, Outcome, Trajectory
from posttrain.worlds.bfcl import package
from posttrain.worlds.bfcl.entries import Call, Entry
from posttrain.worlds.bfcl.grade import grade
from posttrain.worlds.bfcl.instances import Instances, make_instances
from posttrain.worlds.bfcl.schemas import is_read_only, schemas_of
from posttrain.worlds.tools import Tool, ToolError


@dataclass(frozen=True, slots=True)
class ClassTool(Tool):
    """A function of the package's classes. It is given what the agent wrote, unread: 5 is not 5.0
    there, and a wrong type or name is for the class to refuse."""

    def parse(self, arguments: str) -> dict[str, Any]:
        return _ANY.parse(arguments)


_ANY = Tool("", "", {"additionalProperties": True}, lambda: None)


class BfclWorld:
    def __init__(self, entry: Entry) -> None:
        self._entry = entry
        self._instances = make_instances(entry)[0]
        self._made: list[list[Call]] = [[]]  # of each turn that came up
        self._num_steps = 0
        self._tools = tools_of(entry.classes, self._bind)

    def tools(self) -> Mapping[str, Tool]:
        """Every function of the entry's classes, also those that are announced later."""
        return self._tools

    def user_reply(self, message: Message) -> str | None:
        """The user's next turn, whatever the agent said; None after the last."""
        del message
        self._num_steps = 0
        turn = len(self._made)
        if turn == len(self._entry.turns):
            return None
        self._made.append([])
        return self._entry.turns[turn]

    def is_over(self) -> bool:
        """True where one turn has taken more messages with calls than the package allows. It counts
        them, because it is asked after the results of each."""
        self._num_steps += 1
        return self._num_steps > package.max_steps()

    def describe(self) -> str:
        """The attributes of each instance that the package compares, a line each."""
        instances = self._instances
        return "\n".join(
            f"{kind}.{name} = {value!r}" for kind in instances.by_class for name, value in instances.state(kind).items()
        )

    def grade(self, trajectory: Trajectory) -> Outcome:
        """The calls are made once more, on instances of their own, as by the package's checker."""
        return grade(self._entry, self._made, trajectory, is_forced=self._num_steps > package.max_steps())

    def _bind(self, name: str) -> Callable[..., JsonValue]:
        def function(**arguments: Any) -> JsonValue:
            self._made[-1].append(Call(name, arguments))
            return _answer(self._instances, self._made[-1][-1])

        return function


def of_no_episode(**_: Any) -> JsonValue:
    raise RuntimeError("this tool only describes; take the tool from World.tools()")


def tools_of(classes: tuple[str, ...], bind: Callable[[str], Callable[..., Any]]) -> dict[str, Tool]:
    """The tools of these classes by name, each with the function that `bind` gives for it."""
    return {
        name: ClassTool(
            name,
            schema["description"],
            schema["parameters"],
            bind(name),
            is_instant=True,
            side_effect="none" if is_read_only(name) else "reversible",
        )
        for class_name in classes
        for name, schema in schemas_of(class_name).items()
    }


def _answer(instances: Instances, call: Call) -> JsonValue:
    """The class's answer as JSON, or as Python writes it where it is none."""
    try:
        answer = instances.call(call)
    except Exception as error:  # the package's boundary: it tells the agent of whatever a class raises
        raise ToolError(f"Error during execution: {error}") from error
    if isinstance(answer, dict) and set(answer) == {"error"}:
        raise ToolError(str(answer["error"]))
    try:
        json.dumps(answer)
    except (TypeError, ValueError):
        return str(answer)
    read: JsonValue = answer
    return read
