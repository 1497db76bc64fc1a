"""Serves a world by OpenEnv's protocol (0.10): a WebSocket for each session, with `reset`, `step`,
`state` and `close`; tasks by split over HTTP.

Actions are OpenEnv's `list_tools` and `call_tool`, where the tool `say` is a message to the user,
the final answer included; and two of our own, for a program that has whole messages of a model:
`message`, in OpenAI's format, and `stop`, which ends the episode as it is. The reward comes with
`done`, is our own, and is 0 before; an episode is graded however it ended.

A session that is silent for too long ends, and there are so many at once: half-open connections
would otherwise take every place.
"""

import asyncio
import contextlib
import itertools
import json
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import uvicorn
from fastapi import Body, FastAPI, HTTPException, Request, WebSocket, WebSocketDisconnect
from fastapi.responses import JSONResponse

from posttrain.export.world_folder import SAY, ExportedWorld, said_by_call
from posttrain.rollout.pushed import PushedEpisode
from posttrain.runtime.exits import ConfigurationError, StageError
from posttrain.runtime.limits import reason
from posttrain.runtime.loopback import LOOPBACK, stranger
from posttrain.types import Message, StopReason, Task, ToolCall
from posttrain.worlds.catalog import splits_of
from posttrain.worlds.grading import OUT_OF_TIME
from posttrain.worlds.tools import Tool, json_object

_TYPE_OF_SPLIT = {"sft": "train", "rl": "train", "dev": "validation"}  # any other is a test
_OBJECT = {"type": "object"}
_ACTION = {
    "title": "CallToolAction",
    **_OBJECT,
    "properties": {
        "type": {"enum": ["call_tool", "list_tools", "message", "stop"], "default": "call_tool"},
        "tool_name": {"type": "string"},
        "arguments": _OBJECT,
        "message": _OBJECT,
        "stop": {"enum": sorted(OUT_OF_TIME)},
    },
}


class BadRequest(Exception):
    """A request that cannot be served, with OpenEnv's code for the reason."""

    def __init__(self, message: str, code: str = "VALIDATION_ERROR") -> None:
        super().__init__(message)
        self.code = code


class Session:
    """One connection: an episode at a time, of a task that `choose` gives for the data of a
    reset."""

    def __init__(self, world: ExportedWorld, choose: Callable[[Mapping[str, Any]], Task]) -> None:
        self._world, self._choose = world, choose
        self._played: PushedEpisode | None = None
        self._episode_id: str | None = None
        self._is_told = False  # of its end

    async def answer(self, text: str) -> dict[str, Any] | None:
        """The answer to one message of the client; None where it closes. Raises BadRequest."""
        asked = json_object(text)
        if asked is None:
            raise BadRequest("the message is no JSON object", "INVALID_JSON")
        data = asked.get("data") or {}
        if not isinstance(data, dict):
            raise BadRequest("data is no JSON object")
        match asked.get("type"):
            case "reset":
                return {"type": "observation", "data": await self._reset(data)}
            case "step":
                return {"type": "observation", "data": await self._step(data)}
            case "state":
                steps = self._played.episode.num_replies if self._played else 0
                return {"type": "state", "data": {"episode_id": self._episode_id, "step_count": steps}}
            case "close":
                return None
        raise BadRequest("a message's type is reset, step, state or close", "UNKNOWN_TYPE")

    async def close(self) -> None:
        if self._played is not None:
            await self._played.close()

    async def _reset(self, data: Mapping[str, Any]) -> dict[str, Any]:
        task = self._choose(data)
        await self.close()
        self._played = PushedEpisode(self._world.domain, task, self._world.limits)
        self._is_told = False
        self._episode_id = str(data.get("episode_id") or task.task_id)
        messages, tools = await self._played.begin(), [tool.schema() for tool in self._offered()]
        return self._seen({"task_id": task.task_id, "messages": _openai(messages), "tools": tools})

    async def _step(self, data: Mapping[str, Any]) -> dict[str, Any]:
        kind, played = data.get("type", "call_tool"), self._played
        if kind == "list_tools":
            tools = [
                {"name": one.name, "description": one.description, "input_schema": one.parameters}
                for one in (*self._offered(), SAY)
            ]
            return self._seen({"tools": tools})
        if played is None or self._is_told:
            raise BadRequest("no episode is open: reset begins one", "EXECUTION_ERROR")
        if played.trajectory is not None:  # its time was over while the agent wrote
            return self._seen({"messages": []})
        stop = StopReason(str(data["stop"])) if str(data.get("stop")) in OUT_OF_TIME else None
        match kind:
            case "call_tool":
                name, arguments = str(data.get("tool_name")), data.get("arguments") or {}
                called = Message("assistant", tool_calls=(ToolCall("", name, json.dumps(arguments)),))
                answers = await played.push(said_by_call(name, arguments, played.episode.tools) or called)
                return self._seen({"tool_name": name, "result": answers[0].content if answers else None})
            case "message":
                message = _message(data.get("message"))
                ids = iter(call.id for call in message.tool_calls)  # a client's own, and the episode has others
                answers = [
                    replace(one, tool_call_id=next(ids, None)) if one.role == "tool" else one
                    for one in await played.push(message, stop)
                ]
                return self._seen({"messages": _openai(answers)})
            case "stop":
                await played.push(None, stop or StopReason.TURN_LIMIT)
                return self._seen({"messages": []})
        raise BadRequest("an action's type is call_tool, list_tools, message or stop")

    def _offered(self) -> list[Tool]:
        tools = self._world.domain.tools
        return [tools[name] for name in (self._played.task.tools if self._played else tools)]

    def _seen(self, observation: Mapping[str, Any]) -> dict[str, Any]:
        """An observation with the reward, if the episode is over. Raises BadRequest for a lost
        one."""
        over = self._played.trajectory if self._played is not None else None
        if over is None or self._played is None:
            return {"observation": observation, "reward": 0.0, "done": False}
        self._is_told = True
        scored = self._world.reward.score(over, self._played.task)
        if scored.outcome is None:
            raise BadRequest(f"the episode is lost, by no doing of the agent's: {over.failure}", "SESSION_ERROR")
        metadata = {
            "success": over.is_success,
            "strict_success": over.is_strict_success,
            "failure": scored.outcome.failure,
            "stop_reason": str(over.stop_reason),
            "scores": dict(scored.scores),
        }
        return {"observation": observation, "reward": scored.reward, "done": True, "metadata": metadata}


class EnvServer:
    """At most `max_sessions` at once, each ended after `session_timeout_s` of silence. `is_open` to
    other machines, or else to programs of this one alone."""

    def __init__(self, world: ExportedWorld, *, max_sessions: int, session_timeout_s: float, is_open: bool) -> None:
        self._world, self._name, self._is_open = world, world.domain.name, is_open
        self._max_sessions, self._timeout_s, self._num_sessions = max_sessions, session_timeout_s, 0
        self._splits, self._tasks = splits_of(world.domain), dict[str, Sequence[Task]]()
        self._next = itertools.count()

    def app(self) -> FastAPI:
        name, app = self._name, FastAPI(title=self._name, version="1.0.0")
        types = {split: _TYPE_OF_SPLIT.get(split.partition("_")[0], "test") for split in self._splits}
        splits = [{"name": split, "type": kind} for split, kind in types.items()]
        for path, page in {
            "/health": {"status": "healthy"},
            "/metadata": {"name": name, "description": f"The world {name} of posttrain"},
            "/schema": {"action": _ACTION, "observation": _OBJECT, "state": _OBJECT},
            "/list_environments": [name],
            f"/{name}/splits": splits,
        }.items():
            app.get(path)(lambda page=page: page)
        app.post("/mcp")(lambda: {"jsonrpc": "2.0", "id": None, "error": {"code": -32601, "message": "ask /ws"}})
        app.post(f"/{name}/{{what}}")(self._task_page)
        app.websocket("/ws")(self._serve_session)
        app.middleware("http")(self._refuse_strangers)
        return app

    def _task_page(self, what: str, asked: dict[str, Any] = Body()) -> dict[str, Any]:  # noqa: B008 - FastAPI's way
        try:
            tasks = self._of(asked.get("split"))
            match what:
                case "num_tasks":
                    return {"num_tasks": len(tasks)}
                case "tasks" | "task_range":
                    places = range(len(tasks))[asked.get("start") or 0 : asked.get("stop")]
                    return {"tasks": [_shown(place, tasks[place]) for place in places]}
                case "task":
                    task = self._chosen(asked)
                    return {"task": _shown(tasks.index(task), task)}
        except (BadRequest, StageError, TypeError) as error:  # a start or stop that is no number
            raise HTTPException(400, str(error)) from error
        raise HTTPException(404, "tasks, task_range, task and num_tasks are served")

    def _of(self, split: Any) -> Sequence[Task]:
        if split not in self._splits:
            raise BadRequest(f"split is {str(split)[:80]!r}; it is one of {', '.join(self._splits)}")
        if split not in self._tasks:
            self._tasks[split] = self._world.tasks(split)
        return self._tasks[split]

    def _chosen(self, data: Mapping[str, Any]) -> Task:
        """The task of `split` (rl) and `index`, or of `seed`, or else the next one."""
        tasks, index = self._of(data.get("split", "rl")), data.get("index")
        if index is None:
            seed = data.get("seed")
            if not isinstance(seed, int | None):
                raise BadRequest(f"seed is {str(seed)[:80]!r}; it is a whole number")
            index = (next(self._next) if seed is None else seed) % max(len(tasks), 1)
        if not isinstance(index, int) or not 0 <= index < len(tasks):
            raise BadRequest(f"index is {str(index)[:80]}; the split has the tasks 0 to {len(tasks) - 1}")
        return tasks[index]

    async def _serve_session(self, client: WebSocket) -> None:
        if not self._is_open and stranger(client.headers, client.url.port or 80):
            await client.close(1008)
            return
        await client.accept()
        if self._num_sessions >= self._max_sessions:
            why = BadRequest(f"{self._num_sessions} sessions are open, as many as may be", "CAPACITY_REACHED")
            await client.send_text(_error(why))
            await client.close(1013)
            return
        self._num_sessions += 1
        session = Session(self._world, self._chosen)
        try:
            await self._talk(client, session)
        except (WebSocketDisconnect, TimeoutError):
            pass
        finally:
            self._num_sessions -= 1
            await session.close()
            with contextlib.suppress(RuntimeError, WebSocketDisconnect):  # where the client closed it
                await client.close()

    async def _talk(self, client: WebSocket, session: Session) -> None:
        while True:
            async with asyncio.timeout(self._timeout_s):
                text = await client.receive_text()
            try:
                answer = await session.answer(text)
            except (BadRequest, StageError) as error:
                await client.send_text(_error(error))
                continue
            if answer is None:
                return
            await client.send_text(json.dumps(answer, ensure_ascii=False))

    async def _refuse_strangers(self, request: Request, call_next: Callable[[Request], Any]) -> Any:
        why = "" if self._is_open else stranger(request.headers, request.url.port or 80)
        return JSONResponse({"detail": why}, 403) if why else await call_next(request)


def serve_world(world: ExportedWorld, *, host: str, port: int, max_sessions: int, session_timeout_s: float) -> None:
    """Serve until Ctrl-C; port 0 is any free one. Raises ConfigurationError where it is taken."""
    is_open = host not in (LOOPBACK, "localhost")
    app = EnvServer(world, max_sessions=max_sessions, session_timeout_s=session_timeout_s, is_open=is_open).app()
    try:
        listening = socket.create_server((host, port))
    except (OSError, OverflowError) as error:
        raise ConfigurationError(f"port {port} of {host} cannot be had ({error}): name another") from error
    print(f"{world.domain.name}: http://{host}:{listening.getsockname()[1]} until Ctrl-C", flush=True)
    # No pings: a client that waits for its model answers none. A silent session ends by its time.
    uvicorn.Server(uvicorn.Config(app, ws_ping_interval=None, log_level="warning")).run(sockets=[listening])


def _message(given: Any) -> Message:
    try:
        message = Message.from_openai(given)
    except (KeyError, TypeError, AttributeError) as error:
        raise BadRequest(f"message is none of OpenAI's: {type(error).__name__}: {reason(error)}") from error
    if message.role != "assistant":
        raise BadRequest(f"the role of a message is {message.role!r}; the agent's is assistant")
    return message


def _openai(messages: Sequence[Message]) -> list[dict[str, Any]]:
    return [message.to_openai() for message in messages]


def _shown(index: int, task: Task) -> dict[str, Any]:
    return {"index": index, "id": task.task_id, "labels": dict(task.labels), "messages": _openai(task.messages)}


def _error(error: Exception) -> str:
    code = error.code if isinstance(error, BadRequest) else "EXECUTION_ERROR"
    return json.dumps({"type": "error", "data": {"message": str(error), "code": code}})
