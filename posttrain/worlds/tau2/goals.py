"""The goal of a tau2 task and the scenario of its user, read from `tasks.json`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import TypeAdapter

from posttrain.runtime.exits import ConfigurationError
from posttrain.types import Task

_GRADED = ("DB", "COMMUNICATE", "ACTION")  # of tau2's RewardType; the others ask a model or the domain's own code


@dataclass(frozen=True, slots=True)
class Action:
    """A call of the reference; `compared` names the arguments that count, None all of a call's."""

    name: str
    arguments: Mapping[str, Any]
    compared: tuple[str, ...] | None = None

    def is_made_by(self, name: str, arguments: Mapping[str, Any]) -> bool:
        """True where a call is this one, by tau2's rule."""
        if name != self.name:
            return False
        compared = tuple(arguments) if self.compared is None else self.compared
        return _only(arguments, compared) == _only(self.arguments, compared)


@dataclass(frozen=True, slots=True)
class Scenario:
    """The user's knowledge and wishes, in the words of the data; empty where it says nothing."""

    persona: str
    reason_for_call: str
    known_info: str
    unknown_info: str
    instructions: str


@dataclass(frozen=True, slots=True)
class Goal:
    """`communicated` must be said; `basis` names what counts: DB, COMMUNICATE, ACTION."""

    actions: tuple[Action, ...]
    communicated: tuple[str, ...]
    basis: tuple[str, ...]
    scenario: Scenario


def goal_text(task: Mapping[str, Any]) -> str:
    """`Task.goal` of one of `tasks.json`. Raises ConfigurationError where it asks for what is not
    graded here: a check by a model or by the domain's own code, a state to begin with, tools of the
    user's."""
    criteria: Mapping[str, Any] = task["evaluation_criteria"] or {}
    basis = criteria.get("reward_basis") or ["DB", "COMMUNICATE"]
    actions = criteria.get("actions") or ()
    unknown = sorted(set(basis) - set(_GRADED))
    if any((task.get("initial_state") or {}).values()):
        unknown.append("initial_state")
    if task.get("user_tools") or any(action.get("requestor", "assistant") != "assistant" for action in actions):
        unknown.append("tools of the user")
    if unknown:
        raise ConfigurationError(
            f"task {task['id']} of tau2 has {', '.join(unknown)}, and only {', '.join(_GRADED)} are graded here: "
            "its verdict would be another than tau2's; name another domain"
        )
    instructions = task["user_scenario"]["instructions"]
    texts = instructions if isinstance(instructions, dict) else {"task_instructions": instructions}
    goal = Goal(
        tuple(Action(action["name"], action["arguments"], action.get("compare_args")) for action in actions),
        tuple(criteria.get("communicate_info") or ()),
        tuple(basis),
        Scenario(
            persona=task["user_scenario"].get("persona") or "",
            reason_for_call=texts.get("reason_for_call") or "",
            known_info=texts.get("known_info") or "",
            unknown_info=texts.get("unknown_info") or "",
            instructions=texts.get("task_instructions") or "",
        ),
    )
    return json.dumps(asdict(goal), ensure_ascii=False, sort_keys=True)


def goal_of(task: Task) -> Goal:
    """The goal that a task carries."""
    return _GOAL.validate_json(task.goal)


_GOAL = TypeAdapter(Goal)


def _only(arguments: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if name in names}
