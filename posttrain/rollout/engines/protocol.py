"""What an engine is: token ids in, token ids and their log-probabilities out, one call per agent
message.

An engine never sees text. A request carries the whole context of the episode, so that an engine
that lost its state (restarted, weights replaced, cache evicted) answers the same as one that kept
it; what it keeps between the turns of an episode is its own affair.

Log-probabilities are those of the distribution that was sampled from, temperature applied, because
that is what an importance ratio divides by (arXiv 2402.03300, eq. 3); where temperature is 0
(greedy) there is no such distribution and they are those at temperature 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One message to write. `temperature` 0 is greedy. `seed` belongs to the episode, not to the
    request: the draw for the token at position p of the context is the p-th number of the seed's
    stream, so an episode is the same however its turns are cut and whatever else is in the batch.
    """

    episode_id: str
    token_ids: Sequence[int]
    max_new_tokens: int
    temperature: float
    seed: int
    stop_ids: frozenset[int]


@dataclass(frozen=True, slots=True)
class Generation:
    """The tokens written, the stop token included, and one log-probability for each. `length`:
    `max_new_tokens` were written without a stop token. All of them were written under the weights
    of `policy_version`."""

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    finish: Literal["stop", "length"]
    policy_version: int


class EngineFailed(Exception):
    """No server answered, as often as it was tried: the message that was asked for will not
    come."""


class Engine(Protocol):
    """A batching generator. An episode that has generated holds resources until it is released,
    whether it ended well or not."""

    @property
    def policy_version(self) -> int:
        """Counts the weight updates: 0 for the weights that the engine was made with."""
        ...

    async def generate(self, request: GenerateRequest) -> Generation:
        """Write one message. Raises ValueError where the request cannot be served at any time
        (empty context, longer than the engine holds)."""
        ...

    def release(self, episode_id: str) -> None:
        """Forget an episode; one that never generated is no error."""
        ...

    def refresh_weights(self) -> None:
        """Take the model's weights as they are now; every context is computed anew. Raises
        RuntimeError while a message is being written."""
        ...

    def sleep(self) -> None:
        """Give back the memory that `refresh_weights`, before which nothing is written any more,
        can take again. Raises as it does."""
        ...
