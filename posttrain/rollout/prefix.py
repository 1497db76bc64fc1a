"""Gives an episode's first turns back from a record, and lets the agent play on from there.

`PrefixEngine` gives recorded turns back token by token: the policy parses them, the world answers
anew, and behind the last one another engine generates. Without one it is a replay; with the first k
turns it plays on from turn k. `PrefixPolicy` gives messages whose tokens nobody sampled, such as an
expert's: the agent reads them as context and is not trained on them.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from posttrain.rollout.engines.protocol import Engine, EngineFailed, GenerateRequest, Generation
from posttrain.rollout.episode import Episode, Reply
from posttrain.rollout.policy import Codec, TokenPolicy
from posttrain.runtime.exits import DataError
from posttrain.types import Message, Trajectory

END_OF_RECORD = "the recording has no further message, and the episode goes on"


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """The tokens of one turn: `read` of context, then `written` by the agent, with their
    log-probabilities."""

    read: Sequence[int]
    written: Sequence[int]
    logprobs: Sequence[float]


def recorded_turns(trajectory: Trajectory) -> list[RecordedTurn]:
    """The trajectory's tokens cut into its turns. Raises DataError where its turns do not add up to
    them."""
    num_tokens = len(trajectory.token_ids)
    if trajectory.delegated:
        raise DataError(
            "the episode has workers, whose tokens cannot be fed back: replay its messages, without --model"
        )
    if not num_tokens or sum(turn.num_read + turn.num_written for turn in trajectory.turns) != num_tokens:
        raise DataError(
            f"the episode has {num_tokens} token ids in {len(trajectory.turns)} turns, which cannot be fed back turn "
            "by turn: replay its messages, without --model"
        )
    found, start = [], 0
    for turn in trajectory.turns:
        written, end = start + turn.num_read, start + turn.num_read + turn.num_written
        read_ids, written_ids = trajectory.token_ids[start:written], trajectory.token_ids[written:end]
        found.append(RecordedTurn(tuple(read_ids), tuple(written_ids), tuple(trajectory.logprobs[written:end])))
        start = end
    return found


class PrefixEngine:
    """Writes `turns` first in each of its episodes, and has `then` write what follows; without it
    an episode that goes on is aborted."""

    def __init__(self, turns: Sequence[RecordedTurn], then: Engine | None = None) -> None:
        # A turn without a token is one for which the context had no room: no engine was asked.
        self._turns, self._then = [turn for turn in turns if turn.written], then
        self._num_given: Counter[str] = Counter()  # by episode id: a second try begins anew

    @property
    def policy_version(self) -> int:
        return 0 if self._then is None else self._then.policy_version

    async def generate(self, request: GenerateRequest) -> Generation:
        """Raises EngineFailed behind the last turn, where no engine follows."""
        index = self._num_given[request.episode_id]
        if index < len(self._turns):
            self._num_given[request.episode_id] += 1
            turn, num_room = self._turns[index], request.max_new_tokens
            token_ids = turn.written[:num_room]
            finish: Literal["stop", "length"] = "stop" if token_ids[-1] in request.stop_ids else "length"
            return Generation(token_ids, turn.logprobs[:num_room], finish, self.policy_version)
        if self._then is None:
            raise EngineFailed(END_OF_RECORD)
        return await self._then.generate(request)

    def release(self, episode_id: str) -> None:
        self._num_given.pop(episode_id, None)
        if self._then is not None:
            self._then.release(episode_id)

    def refresh_weights(self) -> None:
        if self._then is not None:
            self._then.refresh_weights()

    def sleep(self) -> None:
        if self._then is not None:
            self._then.sleep()


class PrefixPolicy:
    """Gives the first messages of the episodes that `given` names by task and seed, and has
    `policy` write the rest. Given messages stand in the tokens as context (mask 0)."""

    def __init__(self, policy: TokenPolicy, codec: Codec, given: Mapping[tuple[str, int], Sequence[Message]]) -> None:
        self._policy, self._codec, self._given = policy, codec, given

    async def reply(self, episode: Episode) -> Reply:
        given = self._given.get((episode.task.task_id, episode.seed), ())
        if len(episode.turns) >= len(given):
            return await self._policy.reply(episode)
        message = given[len(episode.turns)]
        return Reply(message, context_ids=[*self._policy.context_ids(episode), *self._codec.encode_assistant(message)])

    def release(self, episode: Episode) -> None:
        self._policy.release(episode)
