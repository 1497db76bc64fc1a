"""Episodes in an environment of text: the agent's message is the action, the environment's
observation is the user's next message, and the environment's own reward is the grade.

The environment may be anywhere (`worlds/http_env`: behind a URL; `worlds/gymnasium`: in this
process). An action that cannot be read is not taken: the agent reads why, and may write another.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Annotated, Literal, Protocol, Self

from pydantic import Field, model_validator

from posttrain.runtime.knobs import Count, Section
from posttrain.runtime.limits import clip
from posttrain.types import BadNumber, Message, Outcome, Split, Task, Trajectory, number
from posttrain.worlds.made_calls import agent_messages
from posttrain.worlds.params import WorldParams
from posttrain.worlds.protocol import WorldFailed
from posttrain.worlds.tools import Tool

SCORES = ("progress",)
_Index = Annotated[int, Field(ge=0, le=2**31)]


class FirstIndices(Section):
    """The first task of each split among the environment's numbered tasks, or its seeds."""

    sft: _Index
    rl: _Index
    dev: _Index
    test: _Index


class NumberedTasksParams(WorldParams):
    """Knobs of a world with numbered tasks: each split is a range of them."""

    first_index: FirstIndices

    @model_validator(mode="after")
    def _no_task_is_in_two_splits(self) -> Self:
        for one, other in combinations(("sft", "rl", "dev", "test"), 2):
            if shared := set(self.indices(one)) & set(self.indices(other)):
                raise ValueError(
                    f"the task {min(shared)} is in {one} and in {other}: first_index and the num_…_tasks must leave "
                    "each split its own, or a task is trained on and tested on"
                )
        return self

    def indices(self, split: str) -> range:
        """The numbers of a split's tasks."""
        first: int = getattr(self.first_index, split)
        return range(first, first + getattr(self, f"num_{split}_tasks"))


class TextEnvParams(NumberedTasksParams):
    """`action_format`: the whole message is the action, or the text behind its last `Action:`.
    `episode_reward` is the sum of the steps' rewards, or the last where an environment gives the
    score so far. A success is an episode that the environment ended with a last reward of
    `success_reward` or more, where it does not itself say."""

    instructions: str
    action_format: Literal["text", "react"]
    episode_reward: Literal["sum", "last"]
    success_reward: Annotated[float, Field(gt=0)]
    max_observation_chars: Count


class TextEnvDomain(ABC):
    """A domain of numbered tasks. Subclasses make the environment of a number."""

    tools: Mapping[str, Tool] = {}
    scores: Sequence[str] = SCORES

    def __init__(self, params: TextEnvParams, name: str) -> None:
        self._rules, self.name = params, name

    @abstractmethod
    def environment(self, index: int) -> "Environment":
        """The environment of one episode of task `index`."""

    def tasks(self, split: Split, count: int) -> list[Task]:
        """The goal of a task is its number."""
        if split == "test_paraphrase":
            return []
        indices: Sequence[int] = self._rules.indices(split)
        if count > len(indices):
            raise ValueError(f"{count} {split} tasks are asked for, and num_{split}_tasks is {len(indices)}")
        opening = (Message("system", self._rules.instructions),) if self._rules.instructions else ()
        labels = {"environment": self.name}
        return [
            Task(f"{self.name}/{index}", split, opening, (), labels=labels, goal=json.dumps({"index": index}))
            for index in indices[:count]
        ]

    def open(self, task: Task) -> "TextWorld":
        return TextWorld(self.environment(int(json.loads(task.goal)["index"])), self._rules)


@dataclass(frozen=True, slots=True)
class Step:
    """`is_success` is None where the environment says nothing of it but its reward."""

    observation: str
    reward: float
    is_done: bool
    is_success: bool | None = None

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "reward", number(self.reward, "the environment's reward of a step"))
        except BadNumber as error:
            raise WorldFailed(str(error)) from None


class Unreadable(Exception):
    """The text is no action of this environment; the message is for the agent."""


class Environment(Protocol):
    """The environment of one episode. All methods may raise WorldFailed."""

    async def reset(self) -> str:
        """The first observation."""
        ...

    async def step(self, action: str) -> Step:
        """Raises Unreadable where the action was not taken."""
        ...

    async def close(self) -> None: ...


class TextWorld:
    """An agent without tools acts by its messages."""

    def __init__(self, environment: Environment, rules: TextEnvParams) -> None:
        self._environment, self._rules = environment, rules
        self._steps: list[Step | None] = []  # one for each message of the agent; None where it was no action

    def tools(self) -> Mapping[str, Tool]:
        return {}

    async def opening(self) -> Sequence[Message]:
        return [Message("user", self._clipped(await self._environment.reset()))]

    async def user_reply(self, message: Message) -> str | None:
        try:
            step = await self._environment.step(read_action(message.content, self._rules.action_format))
        except Unreadable as error:
            self._steps.append(None)
            return self._clipped(str(error))
        self._steps.append(step)
        return None if step.is_done else self._clipped(step.observation)

    def is_over(self) -> bool:
        return bool(self._steps) and self._steps[-1] is not None and self._steps[-1].is_done

    def grade(self, trajectory: Trajectory) -> Outcome:
        return outcome_of(self._steps, trajectory, self._rules)

    async def close(self) -> None:
        await self._environment.close()

    def _clipped(self, text: str) -> str:
        return clip(text, self._rules.max_observation_chars)


def read_action(text: str, action_format: Literal["text", "react"]) -> str:
    """The action in a message, stripped. Raises Unreadable where there is none.

    react: `Thought:\\nleft is free\\n\\nAction:\\ngo left` is `go left`.
    """
    _, mark, action = text.rpartition("Action:") if action_format == "react" else ("", "Action:", text)
    if not mark or not action.strip():
        react = "`Thought:` and your thoughts, then `Action:` and one action"
        wanted = react if action_format == "react" else "an action"
        raise Unreadable(f"No action was taken: there is none in your message. Write {wanted}.")
    return action.strip()


def outcome_of(steps: Sequence[Step | None], trajectory: Trajectory, rules: TextEnvParams) -> Outcome:
    """`steps` are the results of the agent's messages without calls. `progress` is the episode's
    reward as a share of `success_reward`. A message's credit is its step's reward, cut to [0, 1];
    0.0 where it took no step. Rewards 0, 0, 1 are a success with the credits (0, 0, 1)."""
    taken = [step for step in steps if step is not None]
    last = taken[-1] if taken else Step("", 0.0, is_done=False)
    reward = last.reward if rules.episode_reward == "last" else sum(step.reward for step in taken)
    is_enough = last.reward >= rules.success_reward if last.is_success is None else last.is_success
    success = last.is_done and is_enough
    messages = [message for _, message in agent_messages(trajectory)]
    is_strict = len(taken) == len(steps) and not any(message.tool_calls for message in messages)
    needed = f"a success needs {rules.success_reward:g} at its end."
    return Outcome(
        success=success,
        strict_success=success and is_strict,
        scores={"progress": 1.0 if success else _cut(reward / rules.success_reward)},
        reward=reward,
        turn_scores=_credits(messages, steps),
        failure="low_reward" if last.is_done and not success else "",
        feedback="" if success else f"The environment's last reward was {last.reward:g}, and {needed}",
    )


def _credits(messages: Sequence[Message], steps: Sequence[Step | None]) -> tuple[float, ...]:
    """A message with a call, and a last one that was cut off, never reached the environment."""
    left = iter(steps)
    stepped = [None if message.tool_calls else next(left, None) for message in messages]
    return tuple(0.0 if step is None else _cut(step.reward) for step in stepped)


def _cut(value: float) -> float:
    return min(1.0, max(0.0, value))
