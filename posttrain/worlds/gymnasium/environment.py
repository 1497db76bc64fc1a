"""One environment of gymnasium, its actions and observations as text. The number of a task is the
seed that it is reset with, so an episode that is played again meets the same."""

import json
from contextlib import suppress
from typing import Any

from posttrain.worlds.gymnasium.params import GymnasiumParams
from posttrain.worlds.protocol import WorldFailed
from posttrain.worlds.text_env import Step, Unreadable


class GymnasiumEnvironment:
    """As `text_env.Environment`. Whatever the environment's own code raises is a WorldFailed."""

    def __init__(self, params: GymnasiumParams, index: int) -> None:
        self._params, self._index = params, index
        self._env: Any = None

    async def reset(self) -> str:
        """The first observation, of the task's seed."""
        import gymnasium

        try:
            self._env = gymnasium.make(self._params.env, **self._params.kwargs)
            observation, _ = self._env.reset(seed=self._index)
            return self._shown(observation)
        except Exception as error:  # somebody else's code
            raise WorldFailed(f"{self._params.env} cannot be reset: {type(error).__name__}: {error}") from error

    async def step(self, action: str) -> Step:
        """Raises Unreadable where the space has no such action."""
        taken = action_in(self._env.action_space, action, self._params.actions)
        try:
            observation, reward, is_terminated, is_truncated, info = self._env.step(taken)
            shown, is_done = self._shown(observation), bool(is_terminated or is_truncated)
            is_success = bool(info.get(self._params.success_info)) if self._params.success_info else None
        except Exception as error:  # somebody else's code
            raise WorldFailed(f"{self._params.env} failed at {action!r}: {type(error).__name__}: {error}") from error
        return Step(shown, reward, is_done, is_success)

    async def close(self) -> None:
        """The environment's. The episode is over: an error of it says nothing any more."""
        if self._env is not None:
            with suppress(Exception):  # somebody else's code
                self._env.close()

    def _shown(self, observation: Any) -> str:
        return str(self._env.render()) if self._params.observation == "ansi" else observation_text(observation)


def action_in(space: Any, text: str, words: list[str]) -> Any:
    """The action of a Discrete space by its word or number, of a Text space as it stands. Raises
    Unreadable for another."""
    from gymnasium.spaces import Discrete

    if not isinstance(space, Discrete):
        if space.contains(text):
            return text
        raise Unreadable("No action was taken: the environment does not take this text.")
    first = int(space.start)
    named = {word.lower(): first + place for place, word in enumerate(words)}
    by_number = {str(number): number for number in range(first, first + int(space.n))}
    action = (named or by_number).get(text.lower())
    if action is None or not space.contains(action):
        raise Unreadable(f"No action was taken: write one of {', '.join(named or by_number)}.")
    return action


def observation_text(observation: Any) -> str:
    """A text as it stands, anything else as JSON: `[14, 10, false]`."""
    if isinstance(observation, str):
        return observation
    return json.dumps(observation, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> Any:
    """Of NumPy's numbers and arrays."""
    return value.tolist() if hasattr(value, "tolist") else str(value)
