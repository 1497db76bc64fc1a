"""Replays a recorded episode: the agent's messages are given back, world and tools answer anew, and
every difference is listed.

With a codec the recorded token ids are given back in place of an engine (`rollout/prefix.py`), so
that parsing and context tokens are checked too; without one the recorded messages, for which no
model is needed. Latencies are never compared.
"""

import difflib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from posttrain.rollout.engines.protocol import EngineFailed
from posttrain.rollout.episode import Episode, Reply
from posttrain.rollout.episodes import run_episodes
from posttrain.rollout.params import AgentParams
from posttrain.rollout.policy import Codec, Policy, TokenPolicy
from posttrain.rollout.prefix import END_OF_RECORD, PrefixEngine, RecordedTurn, recorded_turns
from posttrain.runtime.control_chars import escape_control_chars
from posttrain.traces.values import TracedEpisode
from posttrain.types import Message, StopReason, ToolRun, Trajectory
from posttrain.worlds.protocol import Domain

# Ends that neither world nor tools bring about: a replay cannot show them.
_FROM_OUTSIDE = frozenset({StopReason.TIME_LIMIT, StopReason.ENGINE_LOST, StopReason.AGENT_FAILED})


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference. `where` is for a person; a side that has nothing there is empty."""

    where: str
    recorded: str
    replayed: str

    def text(self) -> str:
        """A diff of lines; of two JSON objects, of their fields."""
        recorded, replayed = _fields(self.recorded), _fields(self.replayed)
        if recorded is None or replayed is None or recorded == replayed:  # equal fields: only the spelling differs
            recorded, replayed = self.recorded.splitlines(), self.replayed.splitlines()
        changed = (line for line in difflib.ndiff(recorded, replayed) if line[0] in "+-")
        return escape_control_chars(
            "\n".join([f"{self.where} (- recorded, + replayed)", *(f"  {line}" for line in changed)])
        )


def replay(
    recorded: TracedEpisode, domain: Domain, limits: AgentParams, codec: Codec | None = None
) -> list[Difference]:
    """Every difference, in the order of the conversation. Conversations that the agent's program
    left (`num_forks`) are not recorded, so they are not replayed.

    Raises DataError where `codec` is given and the episode has no tokens in turns.
    """
    policy: Policy
    if codec is None:
        policy = _RecordedMessages(recorded)
    else:
        policy = TokenPolicy(PrefixEngine(recorded_turns(recorded.trajectory)), codec, temperature=1.0)
    may_abort = limits.model_copy(update={"max_aborted_frac": 1.0})
    seeds = [recorded.trajectory.seed]
    [replayed] = run_episodes(policy, [recorded.task], domain=domain, limits=may_abort, seeds=seeds)
    before = recorded.trajectory
    return [
        *_message_differences(recorded, replayed),
        *_run_differences(before, replayed),
        *(_token_differences(before, replayed) if codec is not None else ()),
        *_end_differences(before, replayed),
    ]


class _RecordedMessages:
    """A policy that gives the recorded messages, and those of workers in the order in which they
    were employed."""

    def __init__(self, recorded: TracedEpisode) -> None:
        trajectory = recorded.trajectory
        self._of_workers = [
            [Reply(message) for message in one.messages if message.role == "assistant"] for one in trajectory.delegated
        ]
        messages: list[Message | None] = [trajectory.messages[index] for index in recorded.written()]
        if len(trajectory.turns) > len(messages):
            messages.append(None)  # the context had no room for the last turn's message
        self._replies = [Reply(message) for message in messages]
        if trajectory.stop_reason is StopReason.TOKEN_LIMIT and messages:
            self._replies[-1] = Reply(messages[-1], StopReason.TOKEN_LIMIT)

    async def reply(self, episode: Episode) -> Reply:
        replies, number = self._replies, episode.number
        if episode.parent is not None:
            replies = self._of_workers[number] if number < len(self._of_workers) else []
        if len(episode.turns) == len(replies):
            raise EngineFailed(END_OF_RECORD)
        return replies[len(episode.turns)]

    def release(self, episode: Episode) -> None: ...


def _message_differences(recorded: TracedEpisode, replayed: Trajectory) -> Iterator[Difference]:
    """Differences of messages. A call that the end cut off was never answered: the message in its
    answer's place is not the world's, and is not compared."""
    before, num_opening = recorded.trajectory, len(recorded.task.messages)
    is_answered = {run.call_id for turn in before.turns for run in turn.tool_runs}
    names = {call.id: call.name for message in before.messages for call in message.tool_calls}
    written, turn = recorded.written(), 0
    for index, (old, new) in enumerate(
        zip_longest(before.messages[num_opening:], replayed.messages[num_opening:]), start=num_opening
    ):
        one = old or new
        turn += index in written
        if old == new or (
            old is not None and old.role == "tool" and before.turns and old.tool_call_id not in is_answered
        ):
            continue
        tool = f" {names.get(one.tool_call_id or '', '')} [{one.tool_call_id}]" if one.role == "tool" else ""
        yield Difference(f"turn {turn}, {one.role}{tool}", _text(old), _text(new))


def _run_differences(before: Trajectory, replayed: Trajectory) -> Iterator[Difference]:
    runs = {run.call_id: run for turn in replayed.turns for run in turn.tool_runs}
    for number, turn in enumerate(before.turns, start=1):
        for old in turn.tool_runs:
            new = runs.get(old.call_id)
            if new is not None and (old.outcome, old.num_attempts) != (new.outcome, new.num_attempts):
                yield Difference(f"turn {number}, call of {old.name} [{old.call_id}]", _attempts(old), _attempts(new))


def _token_differences(before: Trajectory, replayed: Trajectory) -> Iterator[Difference]:
    """Differences of the tokens that the agent read; those that it wrote are given back."""
    pairs = zip_longest(recorded_turns(before), recorded_turns(replayed), fillvalue=RecordedTurn((), (), ()))
    for number, (old, new) in enumerate(pairs, start=1):
        if old.read != new.read:
            yield Difference(f"turn {number}, token ids read", _ids(old.read), _ids(new.read))


def _end_differences(before: Trajectory, replayed: Trajectory) -> Iterator[Difference]:
    old, new = (f"{one.stop_reason}: {one.failure}".removesuffix(": ") for one in (before, replayed))
    if replayed.failure == END_OF_RECORD:
        old, new = str(before.stop_reason), "" if before.stop_reason in _FROM_OUTSIDE else END_OF_RECORD
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
    """The lines of a JSON object, one for each field; None where the text is none."""
    try:
        content = json.loads(text)
    except ValueError:
        return None
    return json.dumps(content, ensure_ascii=False, indent=1).splitlines() if isinstance(content, dict) else None
