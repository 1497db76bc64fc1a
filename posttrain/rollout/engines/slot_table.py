"""Per-slot state of the torch engine, as arrays over slots: a step of the whole batch is a few
NumPy calls.

Slots in use are always the first ones: freeing a slot moves the last one into the hole.
"""

import numpy as np
from numpy.typing import NDArray

from posttrain.rollout.engines.protocol import GenerateRequest

MAX_STOP_IDS = 8
_NO_TOKEN = -1


class SlotTable:
    """Arrays over S slots of C positions: `length` known tokens, `num_cached` in the KV cache."""

    def __init__(self, num_slots: int, max_context_tokens: int) -> None:
        self.num_used = 0
        self.token_S_C: NDArray[np.int64] = np.full((num_slots, max_context_tokens), _NO_TOKEN)
        self.logprob_S_C = np.zeros((num_slots, max_context_tokens), np.float32)
        self.draw_S_C = np.zeros((num_slots, max_context_tokens), np.float32)
        self.stop_S_8: NDArray[np.int64] = np.full((num_slots, MAX_STOP_IDS), _NO_TOKEN)
        self.temperature_S = np.zeros(num_slots, np.float32)
        self.length_S = np.zeros(num_slots, np.int64)
        self.num_cached_S = np.zeros(num_slots, np.int64)
        self.message_start_S = np.zeros(num_slots, np.int64)
        self.message_limit_S = np.zeros(num_slots, np.int64)  # the length at which the message is cut
        self.is_writing_S = np.zeros(num_slots, np.bool_)
        self._episode_ids: list[str] = []
        self._slot_of: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.length_S)

    def slot_of(self, episode_id: str) -> int | None:
        return self._slot_of.get(episode_id)

    def episode_id(self, slot: int) -> str:
        return self._episode_ids[slot]

    def take(self, episode_id: str, seed: int) -> int:
        """Give an episode the next free slot and its random stream, a number per position."""
        slot = self.num_used
        self.num_used += 1
        self._episode_ids.append(episode_id)
        self._slot_of[episode_id] = slot
        self.length_S[slot] = self.num_cached_S[slot] = 0
        self.is_writing_S[slot] = False
        # Philox: counter-based, so the p-th number does not depend on how many were drawn together.
        stream = np.random.Generator(np.random.Philox(key=seed % 2**64))
        self.draw_S_C[slot] = stream.random(self.draw_S_C.shape[1], dtype=np.float32)
        return slot

    def free(self, episode_id: str) -> tuple[int, int]:
        """Move the last used slot into the episode's. Returns its old and its new place."""
        slot = self._slot_of.pop(episode_id)
        self.num_used -= 1
        last, moved = self.num_used, self._episode_ids.pop()
        if slot != last:
            for column in vars(self).values():
                if isinstance(column, np.ndarray):
                    column[slot] = column[last]
            self._episode_ids[slot] = moved
            self._slot_of[moved] = slot
        self.is_writing_S[last] = False
        return last, slot

    def begin(self, request: GenerateRequest) -> None:
        """Put a request into its slot; cached positions stay as far as the contexts agree."""
        slot = self._slot_of[request.episode_id]
        context = np.asarray(request.token_ids, np.int64)
        num_cached = min(int(self.num_cached_S[slot]), len(context) - 1)
        # The first position that differs; everything behind it attends to it and is stale.
        is_same = self.token_S_C[slot, :num_cached] == context[:num_cached]
        self.num_cached_S[slot] = num_cached if is_same.all() else is_same.argmin()
        self.token_S_C[slot, : len(context)] = context
        self.length_S[slot] = self.message_start_S[slot] = len(context)
        self.message_limit_S[slot] = len(context) + request.max_new_tokens
        self.temperature_S[slot] = request.temperature
        self.stop_S_8[slot] = _NO_TOKEN
        self.stop_S_8[slot, : len(request.stop_ids)] = sorted(request.stop_ids)
        self.is_writing_S[slot] = True

    def longest_prefix(self, slot: int, available_S: NDArray[np.int64]) -> tuple[int, int]:
        """The slot that shares the longest prefix of this one's context, and the prefix's length.
        Of each slot the first `available_S` tokens count; the last token is always computed."""
        context = self.token_S_C[slot, : self.length_S[slot] - 1]
        is_same = self.token_S_C[: self.num_used, : len(context)] == context
        same_S = (
            np.where(is_same.all(1), len(context), is_same.argmin(1))
            if len(context)
            else np.zeros(self.num_used, np.int64)
        )
        shared_S = np.minimum(same_S, available_S[: self.num_used])
        best = int(shared_S.argmax())
        return best, int(shared_S[best])

    def append(self, token_N: NDArray[np.int64], logprob_N: NDArray[np.float32]) -> NDArray[np.int64]:
        """Append a token to each writing slot of the first N; returns slots whose message ends."""
        slots = np.flatnonzero(self.is_writing_S[: len(token_N)])
        token, length = token_N[slots], self.length_S[slots]
        self.token_S_C[slots, length] = token
        self.logprob_S_C[slots, length] = logprob_N[slots]
        self.num_cached_S[slots] = length
        self.length_S[slots] = length + 1
        is_stop = (self.stop_S_8[slots] == token[:, None]).any(1)
        is_ended = is_stop | (length + 1 == self.message_limit_S[slots])
        ended: NDArray[np.int64] = slots[is_ended]
        self.is_writing_S[ended] = False
        return ended

    def message(self, slot: int) -> tuple[list[int], list[float], bool]:
        """Tokens and log-probabilities of the message just written; True for a stop token."""
        written = slice(self.message_start_S[slot], self.length_S[slot])
        token_ids = self.token_S_C[slot, written]
        return (
            token_ids.tolist(),
            self.logprob_S_C[slot, written].tolist(),
            bool((self.stop_S_8[slot] == token_ids[-1]).any()),
        )
