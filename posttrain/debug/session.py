"""A debugging session of one episode: a tree of branches, and a turn at which it stands.

Each method is one command of a person, in a terminal or on a page. None changes anything on disk:
`save` hands a verified edit out.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Literal

from posttrain.data.edits import VerifiedEdit
from posttrain.debug.player import Player
from posttrain.debug.suggest import Suggestion, suggest
from posttrain.debug.verify import verify
from posttrain.rollout.conversation import is_same
from posttrain.rollout.play_on import Branch, Fork
from posttrain.rollout.prefix import recorded_turns
from posttrain.runtime.exits import ConfigurationError
from posttrain.types import Message, StopReason, Task, ToolCall, Trajectory
from posttrain.worlds.protocol import GoalDomain
from posttrain.worlds.tools import Tool, ToolError, json_object

Mode = Literal["stub", "pin", "live"]


@dataclass(frozen=True, slots=True)
class Node:
    """An episode of the tree. `parent` is None of a recorded one; `at` is the turn from which it
    was played on, `edited` the message that was put there. `task` has the system text and the tools
    that it was played with. `counts` is False where a result was edited or no tool was run."""

    number: int
    episode: Trajectory
    task: Task
    parent: int | None = None
    at: int = 0
    edited: Message | None = None
    counts: bool = True

    @property
    def result(self) -> str:
        """`success`, `failed (wrong_shop)`, `counterfactual`, `aborted: …`."""
        outcome = self.episode.outcome
        if self.episode.is_aborted:
            return f"aborted: {self.episode.failure}"
        if not self.counts:
            return "counterfactual"
        if outcome is None:
            return "not finished"
        if self.episode.is_strict_success:
            return "success"
        more = f" ({outcome.failure})" if outcome.failure else ""
        return f"success with needless calls{more}" if self.episode.is_success else f"failed{more}"

    @property
    def last_turn(self) -> int:
        """The last turn to stand at; behind an episode that was stopped the one that would come."""
        return len(self.episode.turns) + (self.episode.stop_reason is StopReason.TURN_LIMIT)


@dataclass(slots=True)
class Session:
    """`at` is the turn, from 1, that the next edit or play on is of, in the branch `current`.
    `mode` says what follows it: `stub` answers as recorded and runs no tool, `pin` runs them anew
    and writes greedily, `live` runs them and samples. Not played on yet are `pending`, the message
    that an edit has put at the turn, and `pending_results`, the texts put in place of tools'
    results, by call."""

    task: Task
    recorded: Trajectory
    player: Player
    at: int = 1
    current: int = 0
    mode: Mode = "pin"
    allow_differences: bool = False
    nodes: list[Node] = field(default_factory=list)
    pending: Message | None = None
    pending_results: dict[str, str] = field(default_factory=dict)
    _task: Task | None = None  # with an edited system text, or other tools
    _entropies: dict[int, list[float]] = field(default_factory=dict)  # by branch

    def __post_init__(self) -> None:
        self.nodes = [Node(0, self.recorded, self.task)]

    @property
    def node(self) -> Node:
        return self.nodes[self.current]

    def branch(self, number: int) -> Node:
        """Raises ConfigurationError where there is none of that number."""
        if not 0 <= number < len(self.nodes):
            raise ConfigurationError(f"there is no branch {number}: there are 0 to {len(self.nodes) - 1}")
        return self.nodes[number]

    @property
    def task_here(self) -> Task:
        """The task that is played on, with an edited system text and the tools on offer."""
        return self._task or self.node.task

    @property
    def tools(self) -> dict[str, Tool]:
        """The tools that are offered where it stands."""
        return {name: self.player.domain.tools[name] for name in self.task_here.tools}

    @property
    def goal(self) -> str:
        """What the world grades by."""
        domain = self.player.domain
        return domain.describe_goal(self.task) if isinstance(domain, GoalDomain) else self.task.goal

    @property
    def scores(self) -> dict[str, float]:
        """The scores of the current branch; empty where it has none."""
        outcome = self.node.episode.outcome
        return dict(self.node.episode.scores) or (dict(outcome.scores) if outcome else {})

    def message(self, at: int | None = None) -> Message | None:
        """The agent's message at a turn of the current branch; None where it has none."""
        return (*self.node.episode.turn_messages, None)[(at or self.at) - 1]

    def places(self, at: int) -> range:
        """Indices of the messages that the agent read since its last turn, and of what it wrote."""
        messages, turns = self.node.episode.messages, self.node.episode.turns
        start = (turns[at - 2].message_index or 0) + 1 if at > 1 else 0
        end = turns[at - 1].message_index if at <= len(turns) else None
        return range(start, len(messages) if end is None else end + 1)

    def go_to(self, at: int, node: int | None = None) -> None:
        """Stand at another turn, also of another branch; drops an edit that was not played on."""
        number = self.current if node is None else node
        last = self.branch(number).last_turn
        if not 1 <= at <= last:
            raise ConfigurationError(f"branch {number} has the turns 1 to {last}")
        self.current, self.at = number, at
        self.undo()

    def go_to_next(self, condition: str) -> bool:
        """Stand at the next turn that meets a condition (`turns_where`), behind the last one at the
        first; False where none does."""
        found = self.turns_where(condition)
        if found:
            self.go_to(next((at for at in found if at > self.at), found[0]))
        return bool(found)

    def turns_where(self, condition: str) -> list[int]:
        """Turns of the current branch that meet a condition: `tool NAME [KEY=VALUE …]` (called with
        these arguments), `error` (a call failed), `credit` (the world gave the turn less than the
        one before it), `logprob BOUND` (a token less probable than that was written), `entropy
        BOUND` (a token was written where the entropy, in nats, is above it), `part BRANCH` (the
        first at which the two differ). Raises ConfigurationError for any other."""
        kind, *words = condition.split() or [""]
        turns = range(1, len(self.node.episode.turns) + 1)
        if kind == "tool" and words:
            wanted = dict(word.partition("=")[::2] for word in words[1:])
            return [at for at in turns if any(_is_call(call, words[0], wanted) for call in self._calls(at))]
        if kind == "error":
            runs = [turn.tool_runs for turn in self.node.episode.turns]
            return [at for at in turns if any(run.outcome != "ok" for run in runs[at - 1])]
        if kind == "logprob" and len(words) == 1:
            tokens = recorded_turns(self.node.episode)
            return [at for at in turns if min(tokens[at - 1].logprobs, default=0.0) < float(words[0])]
        if kind == "entropy" and len(words) == 1:
            return [at for at in turns if max(self.entropies(at), default=0.0) > float(words[0])]
        if kind == "credit":
            credit = self.node.episode.outcome.turn_scores if self.node.episode.outcome else ()
            return [at for at, (one, before) in enumerate(zip(credit, (0.0, *credit), strict=False), 1) if one < before]
        if kind == "part" and len(words) == 1:
            differing = self.first_difference(self.current, int(words[0]))
            return [at for at in turns if at == differing]
        raise ConfigurationError(
            "break where: tool NAME [KEY=VALUE …], error, credit, logprob BOUND, entropy BOUND, or part BRANCH"
        )

    def entropies(self, at: int) -> list[float]:
        """The model's entropy, in nats, at each token of the turn, as it is loaded now. Raises
        ConfigurationError where nobody reads tokens, DataError for an episode without them."""
        if self.player.entropies is None:
            raise ConfigurationError("entropies are a model's: begin with --model")
        turns = recorded_turns(self.node.episode)
        if self.current not in self._entropies:
            self._entropies[self.current] = self.player.entropies(list(self.node.episode.token_ids))
        end = sum(len(turn.read) + len(turn.written) for turn in turns[:at])
        return self._entropies[self.current][end - len(turns[at - 1].written) : end]

    def world_state(self) -> str:
        """What the world shows of its state before the turn; empty where it shows none."""
        return self.player.world_state(self._fork())

    def _calls(self, at: int) -> Sequence[ToolCall]:
        message = self.message(at)
        return message.tool_calls if message else ()

    def undo(self) -> None:
        """Drop the edits that were not played on."""
        self.pending, self._task = None, None
        self.pending_results.clear()

    def edit_message(self, message: Message) -> None:
        """Put a message in the agent's place. Raises ConfigurationError where it calls a tool that
        is not offered, or with arguments that the tool's schema refuses."""
        for call in message.tool_calls:
            if problem := self.problem(call):
                raise ConfigurationError(problem)
        self.pending = message

    def problem(self, call: ToolCall) -> str:
        """What is wrong with a call by its tool's schema; empty where nothing is."""
        if call.name not in self.tools:
            return f"there is no tool {call.name!r}; offered are {', '.join(self.tools)}"
        try:
            self.tools[call.name].parse(call.arguments)
        except ToolError as error:
            return f"{call.name}: {error}"
        return ""

    def edit_arguments(self, arguments: str) -> None:
        """Put other arguments, as JSON, into the first call of the turn's message."""
        message = self.pending or self.message()
        if message is None or not message.tool_calls:
            raise ConfigurationError(f"the message at turn {self.at} has no call 1")
        first, *others = message.tool_calls
        self.edit_message(replace(message, tool_calls=(replace(first, arguments=arguments), *others)))

    def edit_call(self, name: str, arguments: str) -> None:
        """Put one call in place of the turn's message, which keeps its reasoning."""
        old = self.message()
        reasoning = old.reasoning_content if old else None
        self.edit_message(
            Message("assistant", reasoning_content=reasoning, tool_calls=(ToolCall("", name, arguments),))
        )

    def edit_result(self, call_id: str, text: str) -> None:
        """Put another text in place of a tool's result before the turn. What follows is
        counterfactual: its outcome counts for nothing."""
        self.pending_results[call_id] = text

    def edit_system(self, text: str) -> None:
        """Put another system text before the whole conversation."""
        behind = [message for message in self.task_here.messages if message.role != "system"]
        self._task = replace(self.task_here, messages=(Message("system", text), *behind))

    def edit_tools(self, names: Sequence[str]) -> None:
        """Replace the tools on offer by others of the world. Raises ConfigurationError for a name
        that the world has not."""
        known = self.player.domain.tools
        if missing := [name for name in names if name not in known]:
            raise ConfigurationError(f"the world has no tool {missing[0]!r}; it has {', '.join(known)}")
        self._task = replace(self.task_here, tools=tuple(names))

    def add_recorded(self, episodes: Sequence[Trajectory]) -> list[Node]:
        """Add other recorded episodes of the task, such as the others of its group, as branches."""
        return [self._add(Node(len(self.nodes), one, self.task)) for one in episodes]

    def play_on(self, num: int = 1, *, temperature: float | None = None, only_one_turn: bool = False) -> list[Node]:
        """Play the turn's edit on, `num` times; without an edit the turn itself is written anew.
        `temperature` is by default 1 of several branches and in the mode `live`, and 0 else. A
        single branch is stood in, behind the turn; of several none is."""
        if temperature is None:
            temperature = 1.0 if num > 1 or self.mode == "live" else 0.0
        branches = self.player.branches(
            [self._fork(num=num, seed=len(self.nodes) if temperature else None)],
            temperature=temperature,
            tools="stub" if self.mode == "stub" else "live",
            allow_differences=self.allow_differences,
            max_turns=min(self.at, self.player.limits.max_turns) if only_one_turn else None,
        )
        parent = self.node
        added = [self._add(self._node(branch, parent)) for branch in branches]
        if num == 1:
            [node] = added
            self.go_to(min(self.at + 1, node.last_turn), node.number)
        return added

    def save(self, *, who: str, num: int = 8, seed: int = 0, code: str = "") -> VerifiedEdit | tuple[bool, ...]:
        """Verify the edit that the turn has, or the one that made the current branch."""
        node = self.node
        if self.pending is not None:
            fork, is_counted = self._fork(), node.counts
        elif node.parent is not None and node.edited is not None:
            parent = self.nodes[node.parent]
            fork, is_counted = Fork(node.task, parent.episode, node.at, node.edited), node.counts and parent.counts
        else:
            raise ConfigurationError("there is no edited message to verify: edit one, or go to a branch that has one")
        if fork.task != self.task or not is_counted:
            raise ConfigurationError(
                "the system text, the tools or a result are edited as well: an edit is verified in the recorded task, "
                "with results of the world"
            )
        [found] = verify([fork], self.player, who=who, num=num, seed=seed, code=code)
        return found

    def suggest(self, num: int) -> Suggestion:
        """The turn of the current branch to edit first, by `num` plays on from each."""
        [found] = suggest([self.task], [self.node.episode], self.player, num=num)
        return found

    def warnings(self) -> list[str]:
        """What playing on from here drops, and does not undo."""
        fork = self._fork()
        found = [f"{fork.num_dropped} turns of branch {self.current} are dropped"] if fork.num_dropped else []
        effects = fork.side_effects(self.player.domain.tools)
        return [*found, *([f"not undone outside of the world: {', '.join(effects)}"] if effects else [])]

    def first_difference(self, one: int, other: int) -> int | None:
        """The first turn at which two branches differ; None where they are the same."""
        turns = [self.branch(number).episode.turn_messages for number in (one, other)]
        pairs = enumerate(zip_longest(*turns), 1)
        return next((number for number, pair in pairs if not _are_same(*pair)), None)

    def _fork(self, *, num: int = 1, seed: int | None = None) -> Fork:
        results = dict(self.pending_results)
        return Fork(self.task_here, self.node.episode, self.at, self.pending, results, num, seed)

    def _node(self, branch: Branch, parent: Node) -> Node:
        fork, counts = branch.fork, branch.counts and parent.counts
        return Node(len(self.nodes), branch.trajectory, fork.task, parent.number, fork.at, fork.message, counts)

    def _add(self, node: Node) -> Node:
        self.nodes.append(node)
        return node


def _is_call(call: ToolCall, name: str, wanted: Mapping[str, str]) -> bool:
    given = json_object(call.arguments) or {}
    return call.name == name and all(str(given.get(key)) == value for key, value in wanted.items())


def _are_same(mine: Message | None, theirs: Message | None) -> bool:
    return mine is theirs if mine is None or theirs is None else is_same(mine, theirs)


def message_text(message: Message | None) -> str:
    """One line: the calls, or the text."""
    if message is None:
        return "(no message)"
    calls = " ".join(f"{call.name}({call.arguments})" for call in message.tool_calls)
    return " ".join(f"{message.content} {calls}".split()) or "(an empty message)"


def parse_message(text: str) -> Message:
    """A message of OpenAI's chat format, as JSON. Raises ConfigurationError where it is none."""
    try:
        content = json.loads(text)
        return replace(Message.from_openai({"role": "assistant", **content}), role="assistant")
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise ConfigurationError(f"that is no message of OpenAI's chat format: {error}") from error
