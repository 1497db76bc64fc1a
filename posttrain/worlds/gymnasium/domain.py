"""Episodes of one environment of gymnasium, by their seeds."""

from collections.abc import Mapping, Sequence

from posttrain.runtime.exits import ConfigurationError
from posttrain.types import Split, Task
from posttrain.worlds.gymnasium.environment import GymnasiumEnvironment
from posttrain.worlds.gymnasium.params import GymnasiumParams
from posttrain.worlds.protocol import World
from posttrain.worlds.text_env import SCORES, TextWorld
from posttrain.worlds.text_env_params import index_of, numbered_tasks
from posttrain.worlds.tools import Tool


class GymnasiumDomain:
    """The environment is made once to see that it can be, and what it takes for an action."""

    tools: Mapping[str, Tool] = {}
    scores: Sequence[str] = SCORES

    def __init__(self, params: GymnasiumParams) -> None:
        """Raises ConfigurationError where gymnasium or the environment is missing, or its actions
        cannot be written."""
        self._params = params
        self.name = params.env.rpartition(":")[2].rpartition("/")[2]
        _check(params)

    def tasks(self, split: Split, count: int) -> list[Task]:
        """As `Domain.tasks`."""
        return numbered_tasks(self._params, self.name, split, count)

    def open(self, task: Task) -> World:
        """As `Domain.open`."""
        return TextWorld(GymnasiumEnvironment(self._params, index_of(task)), self._params.rules())


def _check(params: GymnasiumParams) -> None:
    try:
        import gymnasium
        from gymnasium.spaces import Discrete, Text
    except ImportError:
        raise ConfigurationError(
            "world.type is gymnasium, and the package gymnasium is not installed: install posttrain[gymnasium]"
        ) from None
    try:
        env = gymnasium.make(params.env, **params.kwargs)
    except Exception as error:  # gymnasium's own errors, and whatever a module of one's own raises
        raise ConfigurationError(
            f"world.env is {params.env!r} and cannot be made ({type(error).__name__}: {error}); see env and kwargs"
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
