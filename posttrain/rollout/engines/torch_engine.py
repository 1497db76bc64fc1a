"""Generation in this process by continuous batching, over the live weights of a model that may be
training.

An episode keeps its slot from its first message to its release, so a turn reads only the tokens
that came since the last one. Episodes without a slot wait in the order of their arrival; one that
is busy elsewhere (a slow tool) gives its slot to one that waits, and reads its context again when
it comes back. The order of computation depends on the order of requests and on token counts, never
on the clock: requests are gathered until the event loop has nothing left to run, then one token is
written in every slot that has a message to write. So with tools that answer at once two runs make
the same bits.
"""

import asyncio
import contextlib
from collections import deque

import numpy as np
import torch
from torch import Tensor, nn

from posttrain.rollout.engines.fused_weights import fuse
from posttrain.rollout.engines.protocol import GenerateRequest, Generation
from posttrain.rollout.engines.slot_table import MAX_STOP_IDS, SlotTable
from posttrain.rollout.engines.slotted_decoder import Extension, SlottedDecoder, num_slots_within

_MIN_SHARED = 16  # a common prefix shorter than this is computed again rather than copied


class TorchEngine:
    """Generates for one model, whose weights it copies when made and in `refresh_weights`. With
    `takes_weights` it takes them instead: the model is empty, and has no others to give."""

    def __init__(
        self, model: nn.Module, *, num_slots: int, max_context_tokens: int, takes_weights: bool = False
    ) -> None:
        """On a GPU at most as many slots as a third of the free memory holds. Raises
        ConfigurationError for an unsupported model."""
        self.policy_version = 0
        weights = fuse(model, takes=takes_weights)
        if weights.embedding.is_cuda:
            free, _ = torch.cuda.mem_get_info(weights.embedding.device)
            num_slots = min(num_slots, num_slots_within(free, weights, max_context_tokens))
        self._model, self._has_taken = model, takes_weights
        self._awake: SlottedDecoder | None = SlottedDecoder(
            weights, num_slots=num_slots, max_context_tokens=max_context_tokens
        )
        self._table = SlotTable(num_slots, max_context_tokens)
        self._max_context_tokens = max_context_tokens
        self._ready: list[GenerateRequest] = []  # of episodes that have a slot
        self._waiting: deque[GenerateRequest] = deque()
        self._evicted: set[str] = set()
        self._futures: dict[str, asyncio.Future[Generation]] = {}
        self._num_arrivals = 0
        self._pump: asyncio.Task[None] | None = None

    async def generate(self, request: GenerateRequest) -> Generation:
        """Raises ValueError for a request that no slot can hold. A cancelled caller gives the
        message up: the episode keeps its slot and may ask again at once."""
        self._check(request)
        self._num_arrivals += 1
        was_evicted = request.episode_id in self._evicted
        if self._table.slot_of(request.episode_id) is not None:
            self._ready.append(request)
        elif was_evicted:
            self._evicted.remove(request.episode_id)
            # Before those that have not begun, or the open episodes would grow without end.
            self._waiting.appendleft(request)
        else:
            self._waiting.append(request)
        future: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        self._futures[request.episode_id] = future
        if self._pump is None or self._pump.done():
            self._pump = asyncio.create_task(self._run())
        try:
            return await future
        except asyncio.CancelledError:
            if self._futures.get(request.episode_id) is future:
                self._give_up(request.episode_id)
                if was_evicted and self._table.slot_of(request.episode_id) is None:
                    self._evicted.add(request.episode_id)
            raise

    def release(self, episode_id: str) -> None:
        if future := self._give_up(episode_id):
            future.cancel()
        self._evicted.discard(episode_id)
        if self._table.slot_of(episode_id) is not None:
            self._free(episode_id)

    def refresh_weights(self) -> None:
        if self._has_taken:
            raise RuntimeError("the engine has taken the model's weights: there are no others to read")
        self.sleep()  # before the new ones are made: two copies may not have room
        self._awake = SlottedDecoder(
            fuse(self._model), num_slots=len(self._table), max_context_tokens=self._max_context_tokens
        )
        self.policy_version += 1

    def sleep(self) -> None:
        if self._futures:
            raise RuntimeError(
                f"{len(self._futures)} messages are being written; half of each would be by the old weights: "
                "await them first"
            )
        self._awake = None
        self._table.num_cached_S[:] = 0

    @property
    def _decoder(self) -> SlottedDecoder:
        if self._awake is None:
            raise RuntimeError("the engine sleeps: let it read the weights again")
        return self._awake

    def _give_up(self, episode_id: str) -> "asyncio.Future[Generation] | None":
        """Stop writing an episode's message. Its slot keeps the tokens for the next context."""
        future = self._futures.pop(episode_id, None)
        if future is not None:
            self._ready = [request for request in self._ready if request.episode_id != episode_id]
            self._waiting = deque(request for request in self._waiting if request.episode_id != episode_id)
            slot = self._table.slot_of(episode_id)
            if slot is not None:
                self._table.is_writing_S[slot] = False
        return future

    def _check(self, request: GenerateRequest) -> None:
        num_read, num_new, num_stops = len(request.token_ids), request.max_new_tokens, len(request.stop_ids)
        is_held = num_read + num_new <= self._max_context_tokens and num_stops <= MAX_STOP_IDS
        if min(num_read, num_new) < 1 or not is_held:
            raise ValueError(
                f"{num_read} tokens of context, {num_new} to write and {num_stops} stop tokens; a slot holds 1 of both "
                f"at least, {self._max_context_tokens} together, and {MAX_STOP_IDS} stop tokens"
            )
        if request.episode_id in self._futures:
            raise ValueError(f"episode {request.episode_id!r} is still writing a message")

    async def _run(self) -> None:
        """Write until every episode has its message; each waiting one gets a failure."""
        try:
            while self._futures:
                await self._until_idle()
                self._admit()
                if self._table.is_writing_S.any():
                    self._step()
        except Exception as error:
            for future in self._futures.values():
                if not future.done():
                    future.set_exception(error)

    async def _until_idle(self) -> None:
        """Let every episode run until it asks for its next message or waits for something else."""
        num_seen = -1
        # Ends after a pass of the event loop in which nobody asked for a message.
        while num_seen != self._num_arrivals:
            num_seen = self._num_arrivals
            await asyncio.sleep(0)

    def _admit(self) -> None:
        """Put every request that has or gets a slot into it, and read their contexts but for the
        last token, which the next step reads."""
        admitted = self._ready
        self._ready = []
        for request in admitted:
            self._table.begin(request)
        while self._waiting and (self._table.num_used < len(self._table) or self._evict()):
            request = self._waiting.popleft()
            self._table.take(request.episode_id, request.seed)
            self._table.begin(request)
            admitted.append(request)
        slots = [slot for request in admitted if (slot := self._table.slot_of(request.episode_id)) is not None]
        while slots:
            slots = self._read_wave(slots)

    def _evict(self) -> bool:
        """Free the idle slot with the shortest context. False where there is none."""
        idle = np.flatnonzero(~self._table.is_writing_S)
        if len(idle) == 0:
            return False
        # Reading a context again costs as much as it is long.
        cheapest = idle[self._table.length_S[idle].argmin()]
        episode_id = self._table.episode_id(int(cheapest))
        self._evicted.add(episode_id)
        self._free(episode_id)
        return True

    def _free(self, episode_id: str) -> None:
        source, target = self._table.free(episode_id)
        if source != target:
            self._decoder.copy(source, target, int(self._table.num_cached_S[target]))

    def _read_wave(self, slots: list[int]) -> list[int]:
        """Read these slots' contexts. Returns those that can copy more from a slot of this wave."""
        table = self._table
        planned_S = np.zeros(len(table), np.int64)
        deferred, extensions = [], []
        for slot in slots:
            num_cached, end = int(table.num_cached_S[slot]), int(table.length_S[slot]) - 1
            if num_cached == 0:
                # `done`: cached now; `planned`: will be, once this wave is read.
                done_slot, num_done = table.longest_prefix(slot, table.num_cached_S)
                _, num_planned = table.longest_prefix(slot, planned_S)
                if num_planned >= num_done + _MIN_SHARED:
                    deferred.append(slot)
                    continue
                if num_done >= _MIN_SHARED:
                    self._decoder.copy(done_slot, slot, num_done)
                    num_cached = num_done
            planned_S[slot] = end
            if end > num_cached:
                extensions.append(Extension(slot, num_cached, table.token_S_C[slot, num_cached:end].tolist()))
        self._decoder.read(extensions)
        # Only now: a slot deferred to the next wave copies from what is really cached.
        updated = planned_S > 0
        table.num_cached_S[updated] = planned_S[updated]
        return deferred

    def _step(self) -> None:
        """Write one token in every slot in use; an idle one reads its last again, to no effect."""
        table = self._table
        used = np.arange(table.num_used)
        length_N = table.length_S[: table.num_used]
        logits_N_V = self._decoder.write(table.token_S_C[used, length_N - 1], length_N)
        device = logits_N_V.device
        temperature_N = torch.from_numpy(table.temperature_S[: table.num_used]).to(device)
        draw_N = torch.from_numpy(table.draw_S_C[used, np.minimum(length_N, self._max_context_tokens - 1)]).to(device)
        token_N, logprob_N = sample(logits_N_V, temperature_N, draw_N)
        for slot in table.append(token_N.cpu().numpy(), logprob_N.cpu().numpy()).tolist():
            token_ids, logprobs, is_stopped = table.message(slot)
            future = self._futures.pop(table.episode_id(slot))
            with contextlib.suppress(asyncio.InvalidStateError):  # cancelled while it was being written
                future.set_result(
                    Generation(token_ids, logprobs, "stop" if is_stopped else "length", self.policy_version)
                )


@torch.inference_mode()
def sample(logits_N_V: Tensor, temperature_N: Tensor, draw_N: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens (N,) and their log-probabilities (N,) under the distribution sampled from.

    By inverting the cumulative distribution at draws, uniform in [0, 1): `torch.multinomial` draws
    from one generator for the whole batch, so an episode would depend on the others in its batch,
    and is ten times slower at this size. Temperature 0 takes the most probable token, with its
    log-probability at temperature 1. By hand: probabilities 0.25, 0.5, 0.25 have the cumulative
    sums 0.25, 0.75, 1, so a draw of 0.2 gives token 0, of 0.25 and of 0.7 token 1, of 0.9 token 2.
    Logits with a NaN give some token, of log-probability NaN.
    """
    is_greedy_N = temperature_N == 0
    probs_N_V = torch.softmax(logits_N_V.float() / torch.where(is_greedy_N, 1.0, temperature_N)[:, None], dim=-1)
    if bool(is_greedy_N.all()):
        token_N = probs_N_V.argmax(-1)
    else:
        token_N = _inverse_cdf(probs_N_V, draw_N)
        if bool(is_greedy_N.any()):
            token_N = torch.where(is_greedy_N, probs_N_V.argmax(-1), token_N)
    return token_N, probs_N_V.gather(1, token_N[:, None]).squeeze(1).log()


def _inverse_cdf(probs_N_V: Tensor, draw_N: Tensor) -> Tensor:
    """The first token whose cumulative sum exceeds draw · total."""
    # The product may round up to the total: no sum would exceed it, and the last token would be
    # drawn however improbable it is.
    cdf_N_V = probs_N_V.cumsum(-1)
    total_N_1 = cdf_N_V[:, -1:]
    threshold_N_1 = torch.minimum(draw_N[:, None] * total_N_1, torch.nextafter(total_N_1, torch.zeros_like(total_N_1)))
    # of NaN it is the vocabulary's size, an index that nothing has
    return torch.searchsorted(cdf_N_V, threshold_N_1, right=True).squeeze(1).clamp(max=cdf_N_V.shape[1] - 1)
