"""Plays an episode again: the agent's recorded words are said once more, and world and tools answer
anew.

With a codec the recorded token ids are fed back through the engine's seam, so that the parsing and
the tokens in between are checked too; without one the recorded messages, for which no model is
needed. Latencies are the clock's and never compared.
"""

import difflib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest

from posttrain.rollout.engines.protocol import EngineFailed, GenerateRequest, Generation
from posttrain.rollout.episode import Episode, Reply
from posttrain.rollout.episodes import play_episodes
from posttrain.rollout.params import AgentParams
from posttrain.rollout.policy import Codec, Policy, TokenPolicy
from posttrain.runtime.control_chars import escape_control_chars
from posttrain.runtime.exits import DataError
from posttrain.traces.values import TracedEpisode
from posttrain.types import Message, StopReason, ToolRun, Trajectory
from posttrain.worlds.protocol import Domain

_OVER = "the recording has no further message, and the episode goes on"
_FROM_OUTSIDE = frozenset(
    {StopReason.TIME_LIMIT, StopReason.ENGINE_LOST, StopReason.AGENT_FAILED}
)  # ends that world and tools do not bring about


@dataclass(frozen=True, slots=True)
class Difference:
    """`where` names the place for a person. Either side is empty where it has nothing there."""

    where: str
    recorded: str
    replayed: str

    def text(self) -> str:
        """A diff; of JSON, of its fields."""
        recorded, replayed = _fields(self.recorded), _fields(self.replayed)
        if recorded is None or replayed is None or recorded == replayed:  # equal fields: only the writing differs
            recorded, replayed = self.recorded.splitlines(), self.replayed.splitlines()
        changed = (line for line in difflib.ndiff(recorded, replayed) if line[0] in "+-")
        return escape_control_chars(
            "\n".join([f"{self.where} (- recorded, + replayed)", *(f"  {line}" for line in changed)])
        )


def replay(
    recorded: TracedEpisode, domain: Domain, limits: AgentParams, codec: Codec | None = None
) -> list[Difference]:
    """Every difference, in the order of the conversation; none where the episode is the same again.
    Of a conversation that the agent's program left (`num_forks`) nothing is recorded, so what it
    said there cannot be said again.

    Raises DataError where `codec` is given and the episode has no tokens or does not say which turn
    they belong to.
    """
    policy: Policy = (
        _Words(recorded) if codec is None else TokenPolicy(_Tokens(recorded.trajectory), codec, temperature=1.0)
    )
    may_be_lost = limits.model_copy(update={"max_aborted_frac": 1.0})
    [played] = play_episodes(
        policy, [recorded.task], domain=domain, limits=may_be_lost, seeds=[recorded.trajectory.seed]
    )
    return list(_differences(recorded, played, has_tokens=codec is not None))


class _Words:
    """A policy that says the recorded messages, from the first again where an episode is played
    again."""

    def __init__(self, recorded: TracedEpisode) -> None:
        played = recorded.trajectory
        own = [played.messages[index] for index in recorded.written()]
        replies: list[Message | None] = (
            [*own, None] if len(played.turns) > len(own) else [*own]
        )  # the last turn had no room for a word
        self._replies = [Reply(message) for message in replies]
        if played.stop_reason is StopReason.TOKEN_LIMIT and replies:
            self._replies[-1] = Reply(replies[-1], StopReason.TOKEN_LIMIT)
        self._num_said: Counter[str] = Counter()

    async def reply(self, episode: Episode) -> Reply:
        index = self._num_said[episode.episode_id]
        if index == len(self._replies):
            raise EngineFailed(_OVER)
        self._num_said[episode.episode_id] += 1
        return self._replies[index]

    def release(self, episode: Episode) -> None:
        """Nothing is held."""


class _Tokens:
    """An engine that writes the recorded ids, turn by turn."""

    policy_version = 0

    def __init__(self, recorded: Trajectory) -> None:
        self._turns = [turn for turn in _token_turns(recorded) if turn.written]
        self._num_written: Counter[str] = Counter()

    async def generate(self, request: GenerateRequest) -> Generation:
        index = self._num_written[request.episode_id]
        if index == len(self._turns):
            raise EngineFailed(_OVER)
        self._num_written[request.episode_id] += 1
        token_ids = self._turns[index].written[: request.max_new_tokens]
        return Generation(
            token_ids, [0.0] * len(token_ids), "stop" if token_ids[-1] in request.stop_ids else "length", 0
        )

    def release(self, episode_id: str) -> None:
        """Nothing is held."""

    def refresh_weights(self) -> None:
        """There are none."""

    def sleep(self) -> None:
        """Nothing is held."""


@dataclass(frozen=True, slots=True)
class _TokenTurn:
    read: Sequence[int]
    written: Sequence[int]


def _token_turns(played: Trajectory) -> Iterator[_TokenTurn]:
    if not played.token_ids or sum(turn.num_read + turn.num_written for turn in played.turns) != len(played.token_ids):
        raise DataError(
            f"the episode has {len(played.token_ids)} token ids in {len(played.turns)} turns, "
            "which cannot be fed back turn by turn: replay its "
            "messages, without --model"
        )
    ids = iter(played.token_ids)
    for turn in played.turns:
        yield _TokenTurn(tuple(islice(ids, turn.num_read)), tuple(islice(ids, turn.num_written)))


def _differences(recorded: TracedEpisode, played: Trajectory, *, has_tokens: bool) -> Iterator[Difference]:
    yield from _message_differences(recorded, played)
    yield from _run_differences(recorded.trajectory, played)
    if has_tokens:
        yield from _token_differences(recorded.trajectory, played)
    yield from _end_differences(recorded.trajectory, played)


def _message_differences(recorded: TracedEpisode, played: Trajectory) -> Iterator[Difference]:
    """A call that the end cut off was never answered: what stands in its answer's place is not the
    world's."""
    before, num_opening = recorded.trajectory, len(recorded.task.messages)
    is_answered = {run.call_id for turn in before.turns for run in turn.tool_runs}
    names = {call.id: call.name for message in before.messages for call in message.tool_calls}
    written, turn = recorded.written(), 0
    for index, (old, new) in enumerate(
        zip_longest(before.messages[num_opening:], played.messages[num_opening:]), start=num_opening
    ):
        one = old or new
        turn += index in written
        if old == new or (
            old is not None and old.role == "tool" and before.turns and old.tool_call_id not in is_answered
        ):
            continue
        tool = f" {names.get(one.tool_call_id or '', '')} [{one.tool_call_id}]" if one.role == "tool" else ""
        yield Difference(f"turn {turn}, {one.role}{tool}", _text(old), _text(new))


def _run_differences(before: Trajectory, played: Trajectory) -> Iterator[Difference]:
    runs = {run.call_id: run for turn in played.turns for run in turn.tool_runs}
    for number, turn in enumerate(before.turns, start=1):
        for old in turn.tool_runs:
            new = runs.get(old.call_id)
            if new is not None and (old.outcome, old.num_attempts) != (new.outcome, new.num_attempts):
                yield Difference(f"turn {number}, call of {old.name} [{old.call_id}]", _attempts(old), _attempts(new))


def _token_differences(before: Trajectory, played: Trajectory) -> Iterator[Difference]:
    """What the agent read; what it wrote is fed in."""
    pairs = zip_longest(_token_turns(before), _token_turns(played), fillvalue=_TokenTurn((), ()))
    for number, (old, new) in enumerate(pairs, start=1):
        if old.read != new.read:
            yield Difference(f"turn {number}, token ids read", _ids(old.read), _ids(new.read))


def _end_differences(before: Trajectory, played: Trajectory) -> Iterator[Difference]:
    old, new = (f"{one.stop_reason}: {one.failure}".removesuffix(": ") for one in (before, played))
    if played.failure == _OVER:
        old, new = str(before.stop_reason), "" if before.stop_reason in _FROM_OUTSIDE else _OVER
    if new and old != new:
        yield Difference("end", old, new)


def _text(message: Message | None) -> str:
    if message is None:
        return ""
    reasoning = [f"({message.reasoning_content})"] if message.reasoning_content else []
    calls = [f"→ {call.name} {call.arguments}" for call in message.tool_calls]
    return "\n".join([*reasoning, *([message.content] if message.content else []), *calls]) or "(an empty message)"


def _attempts(run: ToolRun) -> str:
    return f"{run.outcome} at attempt {run.num_attempts}"


def _ids(token_ids: Sequence[int]) -> str:
    return "\n".join(map(str, token_ids))


def _fields(text: str) -> list[str] | None:
    """The lines of a JSON object, a field each; None where the text is none."""
    try:
        content = json.loads(text)
    except ValueError:
        return None
    return json.dumps(content, ensure_ascii=False, indent=1).splitlines() if isinstance(content, dict) else None
