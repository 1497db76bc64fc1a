"""The engine protocol: token ids in, token ids and their log-probabilities out, one call per agent
message.

A request carries the whole context of the episode, so that an engine that lost its state answers
the same as one that kept it. Log-probabilities are those of the distribution that was sampled from,
temperature applied, because an importance ratio divides by them (arXiv 2402.03300, eq. 3); at
temperature 0 (greedy) they are those at temperature 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One message to write. `seed` is the episode's: the draw for the token at position p of the
    context is the p-th number of its stream, so an episode is the same however its turns are cut
    and whatever else is in the batch."""

    episode_id: str
    token_ids: Sequence[int]
    max_new_tokens: int
    temperature: float
    seed: int
    stop_ids: frozenset[int]


@dataclass(frozen=True, slots=True)
class Generation:
    """The tokens written, stop token included, all under the weights of `policy_version`. `length`:
    `max_new_tokens` were written without a stop token."""

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    finish: Literal["stop", "length"]
    policy_version: int


class EngineFailed(Exception):
    """No server wrote the message at any try, or what was written has a log-probability that is not
    finite. The episode is aborted."""


class Engine(Protocol):
    """A batching generator. An episode that has generated holds resources until it is released."""

    @property
    def policy_version(self) -> int:
        """Number of weight updates."""
        ...

    async def generate(self, request: GenerateRequest) -> Generation:
        """Write one message."""
        ...

    def release(self, episode_id: str) -> None:
        """Free an episode's resources; one that never generated is no error."""
        ...

    def refresh_weights(self) -> None:
        """Copy the model's current weights. Raises RuntimeError while a message is written."""
        ...

    def sleep(self) -> None:
        """Free the memory until `refresh_weights`, before which nothing is written."""
        ...
