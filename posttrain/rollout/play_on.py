"""Plays recorded episodes on from one of their turns.

The recorded turns before it are given back with their tokens, so that nothing is generated again,
and the world answers anew: its answers are held against the record. At the turn an edit may stand
in place of what was recorded; behind it whoever is chosen plays on, as a policy.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from posttrain.rollout.conversation import is_same_call
from posttrain.rollout.episode import Episode, Reply
from posttrain.rollout.episode_sampler import EpisodeSampler, Stream, episode_seeds
from posttrain.rollout.episodes import run_episodes
from posttrain.rollout.params import AgentParams
from posttrain.rollout.policy import Codec, Policy, ScriptedPolicy, TokenPolicy
from posttrain.rollout.prefix import PrefixEngine, RecordedTurn, recorded_turns
from posttrain.runtime.exits import ConfigurationError, DataError
from posttrain.types import Message, Outcome, Split, StopReason, Task, ToolCall, Trajectory
from posttrain.worlds.protocol import Domain, World, WorldFailed
from posttrain.worlds.tools import Tool, json_or_text

ToolMode = Literal["live", "stub"]  # run anew, or answer as recorded and run nothing
Differing = Literal["refuse", "abort", "allow"]  # a branch whose world answers otherwise than recorded


@dataclass(frozen=True, slots=True)
class Fork:
    """A recorded episode to play on from its turn `at`, which is 1 for its first. One that ended at
    the limit of turns can be played on behind its last.

    `message` stands in place of the agent's at that turn; without it whoever plays on writes that
    turn, too. `results` (texts by the calls' ids) stand in place of what tools answered just before
    it: an outcome behind them is counterfactual. `task` may be an edited copy of the episode's
    (system text, tools on offer). `num` branches are played, each under a seed of its own drawn
    from `seed`; None is the episode's own, for a single branch.
    """

    task: Task
    trajectory: Trajectory
    at: int
    message: Message | None = None
    results: Mapping[str, str] = field(default_factory=dict)
    num: int = 1
    seed: int | None = None

    @property
    def num_dropped(self) -> int:
        """Recorded turns that are not given back."""
        return len(self.trajectory.turns) - self.at + 1

    def seeds(self) -> list[int]:
        """The seeds of its branches. Raises ConfigurationError where several would have one."""
        if self.seed is not None:
            return episode_seeds(Stream.BRANCHES, self.seed, self.trajectory.seed, self.at, count=self.num)
        if self.num != 1:
            raise ConfigurationError(f"{self.num} branches need a seed to draw theirs from")
        return [self.trajectory.seed]

    def side_effects(self, tools: Mapping[str, Tool]) -> list[str]:
        """Names of the tools that changed something in the dropped turns. A fresh world undoes what
        lies in it, and nothing that lies outside."""
        runs = [run for turn in self.trajectory.turns[self.at - 1 :] for run in turn.tool_runs if run.outcome == "ok"]
        return list(
            dict.fromkeys(run.name for run in runs if run.name not in tools or not tools[run.name].is_read_only)
        )


@dataclass(frozen=True, slots=True)
class Branch:
    """An episode that was played on. `differences` are the answers of the world that were otherwise
    than recorded. `counts` is False where results were edited or no tool was run: its outcome is
    then none of the world's."""

    fork: Fork
    trajectory: Trajectory
    differences: Sequence[str]
    counts: bool

    @property
    def is_success(self) -> bool:
        return self.counts and self.trajectory.is_success

    @property
    def is_strict_success(self) -> bool:
        return self.counts and self.trajectory.is_strict_success


def play_on(
    forks: Sequence[Fork],
    policy: Policy,
    *,
    domain: Domain,
    limits: AgentParams,
    codec: Codec | None = None,
    tools: ToolMode = "live",
    differing: Differing = "refuse",
    progress: Callable[[int, int], None] | None = None,
) -> list[Branch]:
    """Play the branches of all forks at once; `fork.num` in a row for each.

    With `codec` the recorded tokens are given back, as a policy that reads tokens needs; without it
    the messages, which is enough for an expert, an endpoint or a person. Raises DataError where an
    episode has no such turn or cannot be cut into turns and, unless `differing` says otherwise,
    where the world answers otherwise than recorded; `abort` ends that branch alone.
    """
    plays = [(fork, seed) for fork in forks for seed in fork.seeds()]
    prefixes = {(fork.task.task_id, seed): _Prefix(fork, has_tokens=codec is not None) for fork, seed in plays}
    if len(prefixes) < len(plays):
        raise ConfigurationError("two branches of one task have the same seed: give each fork another one")
    trajectories = run_episodes(
        _PlayOn(policy, codec, prefixes, differing=differing),
        [fork.task for fork, _ in plays],
        domain=domain if tools == "live" else _StubDomain(domain, forks),
        limits=limits,
        seeds=[seed for _, seed in plays],
        progress=progress,
    )
    return [
        Branch(fork, trajectory, tuple(prefix.differences), counts=tools == "live" and not fork.results)
        for (fork, _), trajectory, prefix in zip(plays, trajectories, prefixes.values(), strict=True)
    ]


def sample_branches(sampler: EpisodeSampler, forks: Sequence[Fork]) -> list[Trajectory]:
    """Scored branches by the sampler's model, whatever share is aborted; one whose world answers
    otherwise than recorded ends as TOOL_FAILED."""
    branches = play_on(
        forks,
        sampler.policy(),
        domain=sampler.domain,
        limits=sampler.limits.model_copy(update={"max_aborted_frac": 1.0}),
        codec=sampler.codec,
        differing="abort",
    )
    return sampler.scored([one.trajectory for one in branches], [one.fork.task for one in branches])


class _Prefix:
    """The turns of one branch that are given back, and what was found different."""

    def __init__(self, fork: Fork, *, has_tokens: bool) -> None:
        recorded, num_turns = fork.trajectory, len(fork.trajectory.turns)
        if not 1 <= fork.at <= num_turns + (recorded.stop_reason is StopReason.TURN_LIMIT):
            raise DataError(f"the episode has {num_turns} turns: it cannot be played on from turn {fork.at}")
        if recorded.delegated and fork.at > 1:
            raise DataError("the episode has workers, whose conversations are not given back: play on from turn 1")
        if recorded.num_forks:
            raise DataError("the agent's program left conversations that are not recorded: play the task anew")
        self.fork, self.num_given, self.differences = fork, fork.at - 1, list[str]()
        self._tokens: list[RecordedTurn] = recorded_turns(recorded) if has_tokens else []
        # Index of each turn's message, and of the one that would follow.
        places = [turn.message_index for turn in recorded.turns]
        self._indices = [len(recorded.messages) if place is None else place for place in (*places, None)]

    def reply(self, number: int, context: Sequence[int]) -> Reply:
        """The recorded turn `number` (from 0), behind `context` as it is read now."""
        message, turn = self.fork.trajectory.messages[self._indices[number]], self.fork.trajectory.turns[number]
        if not self._tokens:
            return Reply(message, policy_version=turn.policy_version)
        tokens = self._tokens[number]
        if tuple(context) != tokens.read and self.fork.task.messages == self._opening():
            self.differences.append(f"turn {number + 1}: other token ids are read than were recorded")
        return Reply(message, None, context, tokens.written, tokens.logprobs, turn.policy_version)

    def put_there(self, number: int) -> Message | None:
        """The message of a recorded turn that no engine wrote: its tokens were read."""
        is_written = not self._tokens or self._tokens[number].written
        return None if is_written else self.fork.trajectory.turn_messages[number]

    def compare(self, number: int, unread: Sequence[Message]) -> None:
        """Hold what the agent reads before the turn `number` (from 0) against the record. An edited
        opening is not compared."""
        if number == 0 and self.fork.task.messages != self._opening():
            return
        recorded = self.fork.trajectory.messages[self._indices[number - 1] + 1 if number else 0 : self._indices[number]]
        for place in range(max(len(recorded), len(unread))):
            old = _shown(recorded[place]) if place < len(recorded) else "nothing"
            new = _shown(unread[place]) if place < len(unread) else "nothing"
            if old != new:
                self.differences.append(f"before turn {number + 1}: {old} was recorded, now it is {new}")

    def _opening(self) -> tuple[Message, ...]:
        return self.fork.trajectory.messages[: len(self.fork.task.messages)]


class _PlayOn:
    """Gives the recorded turns back, then the edited message, and has `policy` write the rest."""

    def __init__(
        self,
        policy: Policy,
        codec: Codec | None,
        prefixes: Mapping[tuple[str, int], _Prefix],
        *,
        differing: Differing,
    ) -> None:
        self._policy, self._codec, self._prefixes = policy, codec, prefixes
        self._reader = None if codec is None else TokenPolicy(PrefixEngine(()), codec, temperature=0.0)
        self._differing = differing

    async def reply(self, episode: Episode) -> Reply:
        prefix, number = self._prefixes[episode.task.task_id, episode.seed], len(episode.turns)
        if number == 0:
            prefix.differences.clear()  # an aborted episode is run again
        if number > prefix.num_given:
            return await self._policy.reply(episode)
        prefix.compare(number, episode.now.unread())
        given = None
        if number < prefix.num_given:
            given = prefix.reply(number, self._read(episode, prefix.put_there(number)))
        if prefix.differences and self._differing != "allow":
            found = f"{episode.task.task_id} cannot be played on as it was recorded. {prefix.differences[0]}"
            if self._differing == "abort":
                raise WorldFailed(found)
            raise DataError(f"{found}. Allow differences to go on all the same")
        if given is None:
            _edit_results(episode, prefix.fork.results)
            if prefix.fork.message is None:
                return await self._policy.reply(episode)
            given = Reply(prefix.fork.message, context_ids=self._read(episode, prefix.fork.message))
        if isinstance(self._policy, ScriptedPolicy):  # a script has to be followed to where it goes on
            await self._policy.reply(episode)
        return given

    def release(self, episode: Episode) -> None:
        self._policy.release(episode)

    def _read(self, episode: Episode, message: Message | None = None) -> list[int]:
        """Tokens that were not read yet, and those of a message that nobody sampled."""
        if self._reader is None or self._codec is None:
            return []
        own = [] if message is None else self._codec.encode_assistant(message)
        return [*self._reader.context_ids(episode), *own]


def _edit_results(episode: Episode, results: Mapping[str, str]) -> None:
    """Put edited texts in place of tools' results. Raises DataError for an id that answers none."""
    places = {message.tool_call_id: place for place, message in enumerate(episode.messages)}
    for call_id, text in results.items():
        if call_id not in places:
            raise DataError(f"no result before this turn answers {call_id}: edit one of the turn before it")
        place = places[call_id]
        episode.messages[place] = replace(episode.messages[place], content=text)


class _StubDomain:
    """Worlds whose tools answer as recorded and whose users say what they said; nothing is run."""

    def __init__(self, domain: Domain, forks: Sequence[Fork]) -> None:
        self.name, self.tools, self._domain = domain.name, domain.tools, domain
        self._recorded = {fork.task.task_id: fork.trajectory for fork in forks}

    def tasks(self, split: Split, count: int) -> list[Task]:
        return self._domain.tasks(split, count)

    def open(self, task: Task) -> World:
        return _StubWorld(self._domain.open(task).tools(), self._recorded[task.task_id])


class _StubWorld:
    def __init__(self, tools: Mapping[str, Tool], recorded: Trajectory) -> None:
        self._tools, messages = tools, recorded.messages
        calls = {call.id: call for message in messages for call in message.tool_calls}
        self._results = [(calls[one.tool_call_id], one.content) for one in messages if one.tool_call_id in calls]
        behind = next((place for place, one in enumerate(messages) if one.role == "assistant"), len(messages))
        self._users = [one.content for one in messages[behind:] if one.role == "user"]

    def tools(self) -> Mapping[str, Tool]:
        return {
            name: replace(tool, function=self._answers(name), is_instant=True) for name, tool in self._tools.items()
        }

    def user_reply(self, _message: Message) -> str | None:
        return self._users.pop(0) if self._users else None

    def grade(self, _trajectory: Trajectory) -> Outcome:
        return Outcome(False, False, failure="not_run")

    def _answers(self, name: str) -> Callable[..., object]:
        def answer(**arguments: object) -> object:
            asked = ToolCall("", name, json.dumps(arguments))
            for call, content in self._results:
                if is_same_call(call, asked):
                    return json_or_text(content)
            raise WorldFailed(f"no result of {name}({asked.arguments}) is recorded: play on with live tools")

        return answer


def _shown(message: Message) -> str:
    return f"{message.role} {message.content!r}"
