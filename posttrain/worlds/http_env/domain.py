"""Environments on a server of AgentGym's contract, whose tasks have numbers.

`POST /create` answers a number or an object with one under `id`; `POST /reset` takes it and the
number of a task; `POST /step` takes an action and answers `observation` (WebShop: `state`),
`reward` and `done`; `GET /observation` shows what was last seen, where a reset does not;
`POST /close`, which not all servers have, gives it back. An answer `{"error": …}` is a failure of
the server's. A step is sent once: nobody knows whether one that got no answer was taken.
"""

from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import Any, cast

from posttrain.runtime.limits import clip, reason
from posttrain.types import JsonValue
from posttrain.worlds.http_env.params import HttpEnvParams
from posttrain.worlds.json_endpoint import EndpointFailed, JsonEndpoint
from posttrain.worlds.protocol import WorldFailed
from posttrain.worlds.text_env import Step, TextEnvDomain

_MAX_ID_CHARS = 200


class HttpEnvDomain(TextEnvDomain):
    """Environments of one server, which is asked nothing until an episode begins."""

    def __init__(self, params: HttpEnvParams) -> None:
        super().__init__(params, params.name)
        self._params = params
        self._open_ids: set[int | str] = set()

    def environment(self, index: int) -> "HttpEnvironment":
        return HttpEnvironment(self._params, index, self._open_ids)


class HttpEnvironment:
    """The environment of task `index`; `open_ids` are those of the domain's running episodes."""

    def __init__(self, params: HttpEnvParams, index: int, open_ids: set[int | str]) -> None:
        self._params, self._index, self._open_ids = params, index, open_ids
        self._endpoint = JsonEndpoint(params.url, timeout_s=params.timeout_s, tries=params.tries)
        self._id: int | str | None = None

    async def reset(self) -> str:
        """Creates the environment first. A create that is sent twice leaves one unused behind."""
        params = self._params
        created = await self._post("/create", params.create, is_repeatable=True)
        given = created.get(params.id_field, created.get("id")) if isinstance(created, dict) else created
        if isinstance(given, bool) or not isinstance(given, int | str) or len(str(given)) > _MAX_ID_CHARS:
            raise WorldFailed(f"{params.name} created an environment without an id: {clip(str(created), 200)}")
        if given in self._open_ids:
            raise WorldFailed(
                f"{params.name} created the environment {given!r}, which another episode plays in: the two would "
                "change each other's state; the server was started anew, or counts wrongly"
            )
        self._open_ids.add(given)
        self._id = given
        answer = await self._post(
            "/reset", {**params.reset, params.id_field: given, params.task_field: self._index}, is_repeatable=True
        )
        seen = _observation(answer)
        return await self._observed(given) if seen is None else seen

    async def step(self, action: str) -> Step:
        params = self._params
        answer = await self._post("/step", {params.id_field: self._id, "action": action}, is_repeatable=False)
        seen = _observation(answer)
        reward = answer.get(params.reward_field) if isinstance(answer, dict) else None
        is_done = answer.get("done") if isinstance(answer, dict) else None
        if seen is None or type(is_done) is not bool:
            raise WorldFailed(f"{params.name} answers a step without an observation and done: {clip(str(answer), 200)}")
        return Step(seen, cast(float, reward), is_done)

    async def close(self) -> None:
        if self._id is not None:
            with suppress(EndpointFailed):  # not all servers have it
                await self._endpoint.post("/close", {self._params.id_field: self._id}, is_repeatable=False)
            self._open_ids.discard(self._id)
        await self._endpoint.close()

    async def _observed(self, env_id: int | str) -> str:
        answer = await self._asked(self._endpoint.get("/observation", {self._params.id_field: env_id}))
        if not isinstance(answer, str):
            raise WorldFailed(f"{self._params.name} observes no text: {clip(str(answer), 200)}")
        return answer

    async def _post(self, path: str, body: Mapping[str, Any], *, is_repeatable: bool) -> JsonValue:
        answer = await self._asked(self._endpoint.post(path, body, is_repeatable=is_repeatable))
        if isinstance(answer, dict) and "error" in answer:
            raise WorldFailed(f"{self._params.name}{path} fails: {clip(str(answer['error']), 200)}")
        return answer

    async def _asked(self, request: Coroutine[Any, Any, JsonValue]) -> JsonValue:
        try:
            return await request
        except EndpointFailed as error:
            raise WorldFailed(f"{self._params.name}: {reason(error)}") from None


def _observation(answer: JsonValue) -> str | None:
    """The text of an answer, with task and actions where the server names them; or None."""
    if isinstance(answer, str):
        return answer
    if not isinstance(answer, dict):
        return None
    seen = answer.get("observation", answer.get("state"))
    if not isinstance(seen, str):
        return None
    task, actions = answer.get("task_description"), answer.get("available_actions")
    before = f"{task}\n" if isinstance(task, str) else ""
    behind = f"\nAVAILABLE ACTIONS: {','.join(map(str, actions))}" if isinstance(actions, list) else ""
    return f"{before}{seen}{behind}"
