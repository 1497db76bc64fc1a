"""Runs an agent written with the plain `openai` client against a base URL on this machine, behind
which the policy writes.

One server per batch of episodes, in the engine's event loop. Each episode has an address that
nobody can guess, and the batch a key, so that no other process of this machine can act for an
episode. Errors have a status that clients do not retry (400): a retry would cost a turn.
"""

import asyncio
import contextlib
import hmac
import inspect
import secrets
import socket
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from posttrain.rollout.agent_loops import AgentLoop, in_thread
from posttrain.rollout.agents.openai_format import (
    MODEL,
    BadRequest,
    completion,
    openai_messages,
    read_body,
    read_request,
    streamed,
)
from posttrain.rollout.agents.program import AgentHost, EpisodeOver, run_program
from posttrain.rollout.episode import Episode
from posttrain.rollout.policy import Policy
from posttrain.types import Message, StopReason

_SETTINGS: dict[str, Any] = {
    "log_config": None,
    "access_log": False,
    "lifespan": "off",
    "ws": "none",
    "timeout_keep_alive": 3600,  # seconds: a connection closed while an agent runs a tool would cost a retry
    "timeout_graceful_shutdown": 1,
}


@dataclass(frozen=True, slots=True)
class AgentTask:
    """The argument of an agent: the policy's endpoint, the conversation and the tools in OpenAI's
    form, and `call_tool(name, arguments)`, which returns the text for the model. `arguments` is the
    JSON text as the model wrote it. A coroutine awaits `acall_tool`."""

    base_url: str
    api_key: str
    model: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    _host: AgentHost
    _thread: threading.Thread  # of the event loop

    def call_tool(self, name: str, arguments: str) -> str:
        """Run a tool, for threads. Raises EpisodeOver, and RuntimeError in the event loop."""
        if threading.current_thread() is self._thread:
            raise RuntimeError(
                "call_tool would wait for the event loop that it holds up: in a coroutine, `await task.acall_tool(…)`"
            )
        loop = self._host.over.get_loop()
        return asyncio.run_coroutine_threadsafe(self.acall_tool(name, arguments), loop).result()

    async def acall_tool(self, name: str, arguments: str) -> str:
        """Run a tool, for coroutines. Raises EpisodeOver."""
        return await self._host.run_call(name, arguments)


Agent = Callable[[AgentTask], None] | Callable[[AgentTask], Coroutine[Any, Any, None]]


def openai_loop(agent: Agent) -> AgentLoop:
    """The agent loop of a function of an `AgentTask`, which answers the user and returns.

    A plain function runs in a thread of its own with the blocking client. A coroutine shares the
    event loop that serves its requests: it uses `AsyncOpenAI` and blocks nowhere.
    """
    proxy = Proxy()

    async def loop(episode: Episode, policy: Policy) -> StopReason:
        async def program(host: AgentHost, messages: Sequence[Message]) -> None:
            async with proxy.serve(host) as (base_url, api_key):
                asked, schemas = openai_messages(messages), episode.task_schemas()
                here = threading.current_thread()
                await _run(agent, AgentTask(base_url, api_key, MODEL, asked, schemas, host, here))

        return await run_program(episode, policy, program)

    return loop


async def _run(agent: Agent, task: AgentTask) -> None:
    """Run the agent; a SystemExit ends its own episode and nothing else."""
    if inspect.iscoroutinefunction(agent):
        with _exit_as_error():
            await agent(task)
    else:
        await in_thread(_exit_as_error()(lambda: agent(task)))


@contextlib.contextmanager
def _exit_as_error() -> Iterator[None]:
    try:
        yield
    except SystemExit as error:
        raise RuntimeError(f"the agent's program exited with {error.code!r}") from error


class Proxy:
    """Serves the open episodes of a batch behind one port of the loopback interface."""

    def __init__(self) -> None:
        self._server: _Server | None = None

    @contextlib.asynccontextmanager
    async def serve(self, host: AgentHost) -> AsyncIterator[tuple[str, str]]:
        """The episode's base URL and key, good until the block ends."""
        server = self._server = self._server or _Server()
        name = secrets.token_urlsafe(16)
        server.hosts[name] = host
        try:
            yield f"http://127.0.0.1:{server.port}/e/{name}/v1", server.key
        finally:
            # The last episode of a batch stops the server; the next batch has another event loop.
            del server.hosts[name]
            if not server.hosts:
                self._server = None
                await server.stop()


class _Server(uvicorn.Server):
    """Listens as soon as it is made: connections wait until the event loop serves them."""

    def __init__(self) -> None:
        self.hosts: dict[str, AgentHost] = {}
        self.key = secrets.token_urlsafe(32)
        routes = [
            Route("/e/{name}/v1/chat/completions", self._chat, methods=["POST"]),
            Route("/e/{name}/v1/models", self._models, methods=["GET"]),
        ]
        handlers: Any = {HTTPException: _not_served, Exception: _failed}
        app = Starlette(routes=routes, exception_handlers=handlers)
        app.router.redirect_slashes = False  # a client would follow, and ask twice
        super().__init__(uvicorn.Config(app, **_SETTINGS))
        # Bound here, so that the port is known at once; the kernel queues early connections.
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=2048)
        self.port: int = self._socket.getsockname()[1]
        self._serving = asyncio.create_task(self.serve(sockets=[self._socket]))

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers: the stage has its own for SIGTERM."""
        yield

    async def stop(self) -> None:
        # Without force, uvicorn would wait for kept-alive connections.
        self.should_exit = self.force_exit = True
        await self._serving

    async def _chat(self, request: Request) -> Response:
        if refusal := self._refusal(request):
            return refusal
        try:
            body = read_body(await request.body())
            messages, schemas = read_request(body)
        except BadRequest as error:
            return _error(400, str(error), "invalid_request")
        host = self.hosts.get(request.path_params["name"])
        if host is None:  # while the body came
            return _no_episode()
        # A task of its own: the end of the episode cancels the writing, not this answer. A client
        # that hangs up and asks again gets the message that was written meanwhile.
        reply = asyncio.create_task(host.reply(messages, schemas))
        await asyncio.wait({reply})
        if reply.cancelled():
            return _error(400, "the episode is over", "episode_over")
        try:
            answer = completion(reply.result())
            return (
                Response(streamed(answer), media_type="text/event-stream")
                if body.get("stream")
                else JSONResponse(answer)
            )
        except EpisodeOver as error:
            return _error(400, str(error), "episode_over")

    async def _models(self, request: Request) -> Response:
        model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "posttrain"}
        return self._refusal(request) or JSONResponse({"object": "list", "data": [model]})

    def _refusal(self, request: Request) -> Response | None:
        # compare_digest takes the same time for any wrong key.
        given = request.headers.get("authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {self.key}".encode()):
            return _error(401, "the key is not this batch's; use the api_key of the AgentTask", "invalid_api_key")
        if request.path_params["name"] not in self.hosts:
            return _no_episode()
        return None


def _no_episode() -> Response:
    return _error(404, "no episode has this address; it may be over", "not_found")


async def _not_served(request: Request, error: HTTPException) -> Response:
    return _error(
        error.status_code,
        f"{request.method} {request.url.path} is not served; a rollout has chat/completions and models",
        "not_found",
    )


async def _failed(request: Request, error: Exception) -> Response:
    """Answer our own bug, whose traceback uvicorn prints, with a status that is not retried."""
    return _error(500, f"{request.method} {request.url.path} failed: {type(error).__name__}", "server_error")


def _error(status: int, message: str, code: str) -> JSONResponse:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
    return JSONResponse({"error": error}, status_code=status, headers={"x-should-retry": "false"})
