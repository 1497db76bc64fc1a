"""Generation by vLLM servers: an episode stays with its server, servers come and go, and stale
weights never write a token that is trained on.

An event loop in a thread of its own watches the servers. A server takes part once it has the
current weights and has shown it: on fixed prompts its log-probabilities agree with the trainer's.
One that fails is left out, its message is written by another, and it is tried again every few
seconds.
"""

import asyncio
import os
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import torch

from posttrain.models.adapters import is_adapted
from posttrain.models.precision import compute_dtype
from posttrain.rollout.engines.protocol import EngineFailed, GenerateRequest, Generation
from posttrain.rollout.engines.trainer_weights import TrainerWeights
from posttrain.rollout.engines.vllm_server import BASE, ServerFailed, VllmServer
from posttrain.rollout.engines.weight_files import listed_weights
from posttrain.rollout.engines.weight_stream import WeightSender
from posttrain.runtime.exits import ConfigurationError, Interrupted
from posttrain.runtime.limits import reason
from posttrain.runtime.redaction import redact

T = TypeVar("T")

# |log-probability of the server - of the trainer|; bfloat16 has 8 bits of mantissa
MAX_GAP = {torch.float32: 1e-3, torch.bfloat16: 0.1}
_CHECK_TOKENS = 8  # written behind each fixed prompt
_NUM_TRIES = 4  # of a message, each on another server where there is one
_WATCH_S = 2.0
_LOOK_S = 0.01


class Router:
    """Chooses the server of a message: the one that wrote the episode's last, which has its context
    cached, else the one with the fewest requests in flight. It neither sends nor waits."""

    def __init__(self) -> None:
        self._up: dict[str, None] = {}  # in the order in which they came up: ties go to the first
        self._in_flight = Counter[str]()
        self._server_of: dict[str, str] = {}

    @property
    def up(self) -> tuple[str, ...]:
        return tuple(self._up)

    def set_up(self, url: str) -> None:
        """Route to this server: it answers and has the current weights."""
        self._up[url] = None

    def set_down(self, url: str) -> None:
        self._up.pop(url, None)

    def choose(self, episode_id: str, *, avoid: Sequence[str] = ()) -> str | None:
        """The server for the episode's next message, which then counts as in flight; None where
        none is up. Those to `avoid` are taken only where all others are down."""
        url = self._server_of.get(episode_id)
        if url is None or url not in self._up or url in avoid:
            candidates = [one for one in self._up if one not in avoid] or list(self._up)
            url = min(candidates, key=lambda one: self._in_flight[one], default=None)
        if url is not None:
            self._server_of[episode_id] = url
            self._in_flight[url] += 1
        return url

    def finish(self, url: str) -> None:
        """Count a request that `choose` gave out as over."""
        self._in_flight[url] -= 1

    def release(self, episode_id: str) -> None:
        self._server_of.pop(episode_id, None)


class VllmEngine:
    """Generates for one model through the servers that `urls()` names; to be closed."""

    def __init__(
        self,
        model: Any,
        *,
        urls: Callable[[], Sequence[str]],
        check_prompts: Sequence[Sequence[int]],
        stop_ids: frozenset[int],
        folder: Path,
        stream: str | None = None,
        is_colocated: bool = False,
        timeout_s: float = 120.0,
        patience_s: float = 60.0,
    ) -> None:
        """`folder` takes weights for servers to read, but for whole models where a `stream` (gloo,
        nccl) sends them. With `is_colocated` the servers share the trainer's GPUs, and sleep from
        `sleep` to `refresh_weights`. `timeout_s` is for a message, its time in the server's queue
        included, and for weights. Raises Interrupted where no server takes the weights within
        `patience_s`, ConfigurationError where one writes with others."""
        self.policy_version = -1
        self._model, self._urls, self._check_prompts, self._stop_ids = model, urls, check_prompts, stop_ids
        self._trainer = TrainerWeights(model, check_prompts)
        self._stream = None if is_adapted(model) else stream
        self._is_colocated, self._is_asleep = is_colocated, is_colocated
        self._timeout_s, self._patience_s = timeout_s, patience_s
        self._run = f"{os.getpid()}-{time.time_ns() % 10**9}"  # another run's version 3 is not ours
        self._router = Router()
        self._in_flight = 0
        self._folder = self._weights = folder
        # Tokens written behind the fixed prompts, and the trainer's log-probabilities of them.
        self._reference: list[tuple[list[int], list[float]]] = []
        # Held while weights are written or given out: by `refresh_weights` and by the watch.
        self._preparing, self._scoring = asyncio.Lock(), asyncio.Lock()  # all processes score one at a time
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="vllm", daemon=True)
        self._thread.start()
        self._session = self._await(_open_session())
        self._watching: Future[None] | None = None
        try:
            self.refresh_weights()
        except BaseException:
            self.close()
            raise
        self._watching = asyncio.run_coroutine_threadsafe(self._watch(), self._loop)

    async def generate(self, request: GenerateRequest) -> Generation:
        """Raises EngineFailed where no server wrote the message."""
        self._in_flight += 1
        try:
            # The caller's event loop is a batch's; sessions and routes belong to the engine's own.
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._generate(request), self._loop))
        finally:
            self._in_flight -= 1

    def release(self, episode_id: str) -> None:
        self._loop.call_soon_threadsafe(self._router.release, episode_id)

    def refresh_weights(self) -> None:
        """Raises as the constructor does."""
        if self._in_flight:
            raise RuntimeError(
                f"{self._in_flight} messages are being written; half of each would be by the old weights: "
                "await them first"
            )
        self._await(self._refresh())
        self._trainer.end()

    def sleep(self) -> None:
        if self._is_colocated:  # else the servers' memory is their own
            self._await(self._put_to_sleep())

    def close(self) -> None:
        """End the thread; the servers go on."""
        if self._watching is not None:
            self._watching.cancel()
        self._await(self._session.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def _version(self) -> str:
        return f"{self._run}-{self.policy_version}"

    @property
    def _name(self) -> str:
        """The model's name at the server: an adapter's is its version."""
        return self._version if is_adapted(self._model) else BASE

    def _await(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def _server(self, url: str) -> VllmServer:
        return VllmServer(url, self._session, timeout_s=self._timeout_s)

    async def _generate(self, request: GenerateRequest) -> Generation:
        failed: list[str] = []
        reason = "no server is up"
        deadline = self._loop.time() + self._patience_s
        while len(failed) < _NUM_TRIES:
            url = self._router.choose(request.episode_id, avoid=failed)
            if url is None:
                if self._loop.time() > deadline:
                    break
                await asyncio.sleep(0.1)
                continue
            try:
                return await self._write(url, request)
            except ServerFailed as error:
                reason = str(error)
                failed.append(url)
                self._router.set_down(url)
            finally:
                # Also after a failure or a cancellation, or the server would seem busy for ever.
                self._router.finish(url)
        raise EngineFailed(
            f"the message of episode {request.episode_id} was given up after {len(failed)} failures: {reason}"
        )

    async def _write(self, url: str, request: GenerateRequest) -> Generation:
        token_ids, logprobs, finish, versions = await self._server(url).write(request, model=self._name)
        # A message may span a change of weights; then no single policy wrote it.
        if set(versions) != {self._version}:
            raise ServerFailed(
                f"{redact(url)} wrote with the weights {reason(', '.join(versions))}, not with {self._version}"
            )
        return Generation(token_ids, logprobs, "stop" if finish == "stop" else "length", self.policy_version)

    async def _put_to_sleep(self) -> None:
        async with self._preparing:
            self._is_asleep, up = True, self._router.up
            for url in up:
                self._router.set_down(url)
            await asyncio.gather(*[self._server(url).sleep() for url in up], return_exceptions=True)

    async def _refresh(self) -> None:
        """Write the weights and give them to every server that answers."""
        async with self._preparing:  # the watch must not give the old file under the new name
            for url in self._router.up:
                self._router.set_down(url)
            self._is_asleep = False
            self.policy_version += 1
            self._reference = []
            if not self._stream:
                self._weights = await asyncio.to_thread(self._trainer.write, self._folder / self._version)
                # The last version stays too: a server may still be reading it.
                shutil.rmtree(self._folder / f"{self._run}-{self.policy_version - 2}", ignore_errors=True)
        deadline = self._loop.time() + self._patience_s
        while True:
            errors = await self._bring_up(is_sending=self._stream is not None)
            if refused := [error for error in errors if not isinstance(error, ServerFailed)]:
                raise refused[0]
            if self._router.up:
                return
            if self._loop.time() > deadline:
                raise Interrupted(
                    f"none of the vLLM servers {redact(', '.join(self._urls())) or '(none is named)'} took the "
                    f"weights within {self._patience_s:g} s"
                    f"{f' ({errors[0]})' if errors else ''}; start them (make serve-vllm) and run again"
                )
            await asyncio.sleep(0.5)

    async def _watch(self) -> None:
        """Bring up new servers and those that came back; leave out those no longer named."""
        while True:
            await asyncio.sleep(_WATCH_S)
            for url in set(self._router.up) - set(self._urls()):
                self._router.set_down(url)
            # without a reference a refresh is under way, in which the other processes take part
            for error in await self._bring_up() if self._reference and not self._is_asleep else []:
                if not isinstance(error, ServerFailed):
                    print(f"posttrain: a vLLM server is left out: {error}", file=sys.stderr, flush=True)

    async def _bring_up(self, *, is_sending: bool = False) -> list[BaseException]:
        """Give the weights to every server that is not up; errors of those that stay out. Weights
        are sent during a refresh alone: afterwards the trainer changes them."""
        async with self._preparing:
            down = [url for url in self._urls() if url not in self._router.up]
            failed = await self._send(down) if is_sending else {}
            ready = [url for url in down if url not in failed]
            # The first server alone, because its tokens become the reference for all others.
            outcomes = [await self._prepared(url) for url in ready[:1]] if not self._reference else []
            outcomes += await asyncio.gather(*[self._prepared(url) for url in ready[len(outcomes) :]])
            return [*failed.values(), *(error for error in outcomes if error is not None)]

    async def _send(self, urls: Sequence[str]) -> dict[str, BaseException]:
        """Send the weights to all of these servers at once; the errors of those that did not take
        them."""
        senders, failed = dict[str, WeightSender](), dict[str, BaseException]()
        for url in urls:
            try:
                senders[url] = WeightSender(url, backend=self._stream or "", seconds=self._timeout_s)
            except OSError as error:
                failed[url] = ServerFailed(f"{redact(url)}: {error}")
        loads = {url: asyncio.ensure_future(self._receive(sender)) for url, sender in senders.items()}
        while not all(sender.has_come() or loads[url].done() for url, sender in senders.items()):
            await asyncio.sleep(_LOOK_S)
        if came := [sender for sender in senders.values() if sender.has_come()]:
            await asyncio.to_thread(self._trainer.send_all, came)
        outcomes = await asyncio.gather(*loads.values(), return_exceptions=True)
        return failed | {url: error for url, error in zip(loads, outcomes, strict=True) if error is not None}

    async def _receive(self, sender: WeightSender) -> None:
        """Have a server receive what `sender` sends, while that is sent."""
        server = self._server(sender.url)
        await self._woken(server)
        call = sender.call(listed_weights(self._model))
        await server.load_weights(call, version=self._version, is_adapter=False)

    async def _prepared(self, url: str) -> BaseException | None:
        server = self._server(url)
        try:
            await self._woken(server)
            if await server.weights() != self._version:
                if self._stream:
                    raise ServerFailed(f"{redact(url)} has other weights until the next update")
                await server.load_weights(self._weights, version=self._version, is_adapter=is_adapted(self._model))
            await self._check(server)
        except (ServerFailed, ConfigurationError) as error:
            return error
        self._router.set_up(url)
        return None

    async def _woken(self, server: VllmServer) -> None:
        """Raises ServerFailed where it does not answer."""
        await server.check_health()
        if self._is_colocated:
            await server.wake_up()

    async def _check(self, server: VllmServer) -> None:
        """Compare the log-probabilities of sampled tokens behind fixed prompts with the trainer's.

        Scoring a given text would bypass vLLM's prefix cache and hide a stale one. A later server
        is compared on the first one's tokens: the weights in training may have changed.
        """
        requests = [
            GenerateRequest("check", prompt, _CHECK_TOKENS, 1.0, seed, self._stop_ids)
            for seed, prompt in enumerate(self._check_prompts)
        ]
        written = [
            (ids, logprobs)
            for ids, logprobs, *_ in await asyncio.gather(*[server.write(one, model=self._name) for one in requests])
        ]
        async with self._scoring:
            if not self._reference:
                scored = await asyncio.to_thread(self._trainer.score, [ids for ids, _ in written])
                self._reference = [(ids, logprobs) for (ids, _), logprobs in zip(written, scored, strict=True)]
        gaps, num_compared = [], 0
        for (token_ids, logprobs), (expected_ids, expected) in zip(written, self._reference, strict=True):
            length = _common_length(token_ids, expected_ids)
            gaps.append(
                max((abs(one - other) for one, other in zip(logprobs[:length], expected, strict=False)), default=0.0)
            )
            num_compared += length
        allowed = MAX_GAP.get(compute_dtype(self._model), MAX_GAP[torch.bfloat16])
        # Texts part where rounding tips a sample: at least half of the tokens must be comparable.
        if max(gaps) > allowed or num_compared < sum(len(ids) for ids, _ in self._reference) / 2:
            raise ConfigurationError(
                f"{redact(server.url)} was given the weights of version {self.policy_version} and writes with "
                f"others: on {sum(gap > allowed for gap in gaps)} of {len(gaps)} fixed prompts its log-probabilities "
                f"are off, by up to {max(gaps):.2g} where {allowed:g} is allowed. Is it started as "
                "infra/vllm/serve.sh does, with the same model and type?"
            )


def _common_length(one: Sequence[int], other: Sequence[int]) -> int:
    return next(
        (place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


async def _open_session() -> aiohttp.ClientSession:
    """A session of the running loop; as many connections as there are requests."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
