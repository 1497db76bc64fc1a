"""An episode in an environment of text: what the agent writes is the action, what comes back is the
observation, and the environment's own reward is the verdict.

The environment may be anywhere (`worlds/http_env`: behind a URL; `worlds/gymnasium`: in this
process). An action that cannot be read is not taken: the agent reads why, and may write another.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from posttrain.runtime.limits import clip
from posttrain.types import BadNumber, Message, Outcome, Trajectory, number
from posttrain.worlds.made_calls import agent_messages
from posttrain.worlds.protocol import WorldFailed
from posttrain.worlds.tools import Tool

SCORES = ("progress",)
ActionFormat = Literal["text", "react"]


@dataclass(frozen=True, slots=True)
class Step:
    """What came of an action. `is_success` is None where the environment says nothing of it but its
    reward."""

    observation: str
    reward: float
    is_done: bool
    is_success: bool | None = None

    def __post_init__(self) -> None:
        """Raises WorldFailed where the reward is none: no success could be told by it."""
        try:
            object.__setattr__(self, "reward", number(self.reward, "the environment's reward of a step"))
        except BadNumber as error:
            raise WorldFailed(str(error)) from None


class Unreadable(Exception):
    """The action is none of this environment's; its text is for the agent."""


class Environment(Protocol):
    """One episode's. All may raise WorldFailed."""

    async def reset(self) -> str:
        """The first observation."""
        ...

    async def step(self, action: str) -> Step:
        """Raises Unreadable where the action was not taken."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class TextRules:
    """`action_format`: the whole message is the action, or what stands behind its last `Action:`.
    `episode_reward` is the sum of the steps' rewards, or the last where an environment gives the
    score so far. A success is an episode that the environment ended with a last reward of
    `success_reward` or more, where it does not itself say what is one."""

    action_format: ActionFormat
    episode_reward: Literal["sum", "last"]
    success_reward: float
    max_observation_chars: int


class TextWorld:
    """An agent without tools plays by its messages."""

    def __init__(self, environment: Environment, rules: TextRules) -> None:
        self._environment, self._rules = environment, rules
        self._steps: list[Step | None] = []  # of each message that the user was handed; None where it was no action

    def tools(self) -> Mapping[str, Tool]:
        """None: what the agent writes is the action."""
        return {}

    async def opening(self) -> Sequence[Message]:
        """The first observation."""
        return [Message("user", self._shown(await self._environment.reset()))]

    async def user_reply(self, message: Message) -> str | None:
        """The next observation; None where the environment has ended the episode."""
        try:
            step = await self._environment.step(read_action(message.content, self._rules.action_format))
        except Unreadable as error:
            self._steps.append(None)
            return self._shown(str(error))
        self._steps.append(step)
        return None if step.is_done else self._shown(step.observation)

    def is_over(self) -> bool:
        """Whether the environment has ended the episode."""
        return bool(self._steps) and self._steps[-1] is not None and self._steps[-1].is_done

    def grade(self, trajectory: Trajectory) -> Outcome:
        """By the rewards: `progress` is the episode's reward as a share of what a success needs."""
        return outcome_of(self._steps, trajectory, self._rules)

    async def close(self) -> None:
        """The environment's."""
        await self._environment.close()

    def _shown(self, text: str) -> str:
        return clip(text, self._rules.max_observation_chars)


def read_action(text: str, action_format: ActionFormat) -> str:
    """The action in a message, without the space around it. Raises Unreadable where there is none.

    react: `Thought:\\nleft is free\\n\\nAction:\\ngo left` is `go left`.
    """
    _, mark, action = text.rpartition("Action:") if action_format == "react" else ("", "Action:", text)
    if not mark or not action.strip():
        wanted = (
            "`Thought:` and your thoughts, then `Action:` and one action" if action_format == "react" else "an action"
        )
        raise Unreadable(f"No action was taken: there is none in your message. Write {wanted}.")
    return action.strip()


def outcome_of(steps: Sequence[Step | None], trajectory: Trajectory, rules: TextRules) -> Outcome:
    """`steps` are what came of the agent's messages without calls, in order. A message's credit is
    its step's reward, cut to [0, 1]; 0.0 where it took no step. Rewards 0, 0, 1 of an episode that
    ended are a success with the credits (0, 0, 1)."""
    taken = [step for step in steps if step is not None]
    last = taken[-1] if taken else Step("", 0.0, is_done=False)
    reward = last.reward if rules.episode_reward == "last" else sum(step.reward for step in taken)
    is_enough = last.reward >= rules.success_reward if last.is_success is None else last.is_success
    success = last.is_done and is_enough
    messages = [message for _, message in agent_messages(trajectory)]
    is_strict = len(taken) == len(steps) and not any(message.tool_calls for message in messages)
    return Outcome(
        success=success,
        strict_success=success and is_strict,
        scores={"progress": 1.0 if success else _cut(reward / rules.success_reward)},
        reward=reward,
        turn_scores=_credits(messages, steps),
        failure="low_reward" if last.is_done and not success else "",
        feedback=""
        if success
        else f"The environment's last reward was {last.reward:g}, "
        f"and a success needs {rules.success_reward:g} at its end.",
    )


def _credits(messages: Sequence[Message], steps: Sequence[Step | None]) -> tuple[float, ...]:
    """A message with a call, and a last one that was cut off, were never handed to the
    environment."""
    left = iter(steps)
    stepped = [None if message.tool_calls else next(left, None) for message in messages]
    return tuple(0.0 if step is None else _cut(step.reward) for step in stepped)


def _cut(value: float) -> float:
    return min(1.0, max(0.0, value))
