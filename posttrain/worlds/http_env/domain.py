"""Tasks of an environment server, by their numbers."""

from collections.abc import Mapping, Sequence

from posttrain.types import Split, Task
from posttrain.worlds.http_env.client import HttpEnvironment
from posttrain.worlds.http_env.params import HttpEnvParams
from posttrain.worlds.protocol import World
from posttrain.worlds.text_env import SCORES, TextWorld
from posttrain.worlds.text_env_params import index_of, numbered_tasks
from posttrain.worlds.tools import Tool


class HttpEnvDomain:
    """Nothing is asked of the server until an episode begins."""

    tools: Mapping[str, Tool] = {}
    scores: Sequence[str] = SCORES

    def __init__(self, params: HttpEnvParams) -> None:
        self._params = params
        self.name = params.name
        self._open_ids: set[int | str] = set()

    def tasks(self, split: Split, count: int) -> list[Task]:
        """As `Domain.tasks`."""
        return numbered_tasks(self._params, self.name, split, count)

    def open(self, task: Task) -> World:
        """As `Domain.open`."""
        return TextWorld(HttpEnvironment(self._params, index_of(task), self._open_ids), self._params.rules())
