"""An environment of gymnasium, its actions and observations as text. The number of a task is the
seed that the environment is reset with, so a replayed episode meets the same."""

import json
from contextlib import suppress
from typing import Any

from posttrain.runtime.exits import ConfigurationError
from posttrain.worlds.gymnasium.params import GymnasiumParams
from posttrain.worlds.protocol import WorldFailed
from posttrain.worlds.text_env import Step, TextEnvDomain, Unreadable


class GymnasiumDomain(TextEnvDomain):
    """Makes the environment once. Raises ConfigurationError where it cannot be played by text."""

    def __init__(self, params: GymnasiumParams) -> None:
        super().__init__(params, params.env.rpartition(":")[2].rpartition("/")[2])
        self._params = params
        _check(params)

    def environment(self, index: int) -> "GymnasiumEnvironment":
        return GymnasiumEnvironment(self._params, index)


class GymnasiumEnvironment:
    """The environment of one episode. Whatever its own code raises becomes a WorldFailed."""

    def __init__(self, params: GymnasiumParams, index: int) -> None:
        self._params, self._index = params, index
        self._env: Any = None

    async def reset(self) -> str:
        import gymnasium

        try:
            self._env = gymnasium.make(self._params.env, **self._params.kwargs)
            observation, _ = self._env.reset(seed=self._index)
            return self._shown(observation)
        except Exception as error:  # the environment's own code
            raise WorldFailed(f"{self._params.env} cannot be reset: {type(error).__name__}: {error}") from error

    async def step(self, action: str) -> Step:
        """Raises Unreadable where the space has no such action."""
        taken = action_in(self._env.action_space, action, self._params.actions)
        try:
            observation, reward, is_terminated, is_truncated, info = self._env.step(taken)
            shown, is_done = self._shown(observation), bool(is_terminated or is_truncated)
            is_success = bool(info.get(self._params.success_info)) if self._params.success_info else None
        except Exception as error:  # the environment's own code
            raise WorldFailed(f"{self._params.env} failed at {action!r}: {type(error).__name__}: {error}") from error
        return Step(shown, reward, is_done, is_success)

    async def close(self) -> None:
        if self._env is not None:
            with suppress(Exception):  # the environment's own code; the episode is over
                self._env.close()

    def _shown(self, observation: Any) -> str:
        return str(self._env.render()) if self._params.observation == "ansi" else observation_text(observation)


def action_in(space: Any, text: str, words: list[str]) -> Any:
    """The action of a Discrete space by its word or number, of a Text space as it stands."""
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
    # NumPy's numbers and arrays have `tolist`
    return json.dumps(observation, ensure_ascii=False, default=lambda value: getattr(value, "tolist", value.__str__)())


def _check(params: GymnasiumParams) -> None:
    try:
        import gymnasium
        from gymnasium.spaces import Discrete, Text

        env = gymnasium.make(params.env, **params.kwargs)
    except Exception as error:  # gymnasium is not there, or whatever a module of one's own raises
        raise ConfigurationError(
            f"world.env is {params.env!r} and cannot be made ({type(error).__name__}: {error}); see env and kwargs, "
            "and install posttrain[gymnasium]"
        ) from error
    space = env.action_space
    env.close()
    if not isinstance(space, Discrete | Text):
        raise ConfigurationError(
            f"{params.env} takes actions of {space}, which no message is; Discrete and Text spaces can be written"
        )
    if isinstance(space, Discrete) and params.actions and len({word.lower() for word in params.actions}) != space.n:
        raise ConfigurationError(
            f"actions has {len(params.actions)} words and {params.env} {space.n} actions: name each once, in order"
        )
    if params.observation == "ansi" and params.kwargs.get("render_mode") != "ansi":
        raise ConfigurationError(f"world.observation is ansi; {params.env} then needs kwargs: {{render_mode: ansi}}")
