"""A debugging session of one episode: a tree of branches, and a turn at which it stands.

Each method is one command of a person, and changes what is shown and nothing on disk; `save` alone
hands an edit out, verified.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from posttrain.data.edits import VerifiedEdit
from posttrain.debug.player import Player
from posttrain.debug.verify import verify
from posttrain.rollout.play_on import Branch, Fork
from posttrain.rollout.prefix import recorded_turns
from posttrain.runtime.exits import ConfigurationError
from posttrain.types import Message, Task, ToolCall, Trajectory
from posttrain.worlds.tools import Tool, ToolError, json_object


@dataclass(frozen=True, slots=True)
class Node:
    """An episode of the tree. `parent` is None of the recorded one; `at` is the turn from which it
    was played on, `edited` the message that was put there."""

    number: int
    episode: Trajectory
    parent: int | None = None
    at: int = 0
    edited: Message | None = None
    counts: bool = True

    @property
    def result(self) -> str:
        """`success`, `failed (wrong_shop)`, `stopped at a turn`."""
        outcome = self.episode.outcome
        if not self.counts:
            return "counterfactual"
        if self.episode.is_aborted:
            return f"aborted: {self.episode.failure}"
        if self.episode.is_strict_success:
            return "success"
        more = f" ({outcome.failure})" if outcome and outcome.failure else ""
        return f"success with needless calls{more}" if self.episode.is_success else f"failed{more}"


@dataclass(slots=True)
class Session:
    """`at` is the turn, from 1, that the next edit or play on is of, in the branch `current`."""

    task: Task
    recorded: Trajectory
    player: Player
    at: int = 1
    current: int = 0
    nodes: list[Node] = field(default_factory=list)
    _edited: Message | None = None
    _results: dict[str, str] = field(default_factory=dict)
    _task: Task | None = None  # with an edited system text, or other tools

    def __post_init__(self) -> None:
        self.nodes = [Node(0, self.recorded)]

    @property
    def node(self) -> Node:
        return self.nodes[self.current]

    @property
    def tools(self) -> dict[str, Tool]:
        """The tools that the task offers."""
        return {name: self.player.domain.tools[name] for name in self.task.tools}

    @property
    def pending(self) -> Message | None:
        """The message that an edit has put at the turn, not played on yet."""
        return self._edited

    def message(self, at: int | None = None) -> Message | None:
        """The agent's message at a turn of the current branch; None where it has none."""
        turn = self.node.episode.turns[(at or self.at) - 1]
        return None if turn.message_index is None else self.node.episode.messages[turn.message_index]

    def go_to(self, at: int, node: int | None = None) -> None:
        """Stand at another turn, also of another branch; drops an edit that was not played on."""
        number = self.current if node is None else node
        if not 0 <= number < len(self.nodes):
            raise ConfigurationError(f"there is no branch {number}: there are 0 to {len(self.nodes) - 1}")
        num_turns = len(self.nodes[number].episode.turns)
        if not 1 <= at <= num_turns:
            raise ConfigurationError(f"branch {number} has the turns 1 to {num_turns}")
        self.current, self.at = number, at
        self.undo()

    def turns_where(self, condition: str) -> list[int]:
        """Turns of the current branch that meet a condition: `tool NAME [KEY=VALUE …]` (called with
        these arguments), `error` (a call failed), `logprob BOUND` (a token less probable than that
        was written). Raises ConfigurationError for any other."""
        kind, *words = condition.split()
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
        raise ConfigurationError("break where: tool NAME [KEY=VALUE …], error, or logprob BOUND")

    def _calls(self, at: int) -> Sequence[ToolCall]:
        message = self.message(at)
        return message.tool_calls if message else ()

    def undo(self) -> None:
        """Drop the edits that were not played on."""
        self._edited, self._task = None, None
        self._results.clear()

    def edit_message(self, message: Message) -> None:
        """Put a message in the agent's place. Raises ConfigurationError where it calls a tool that
        is not offered, or with arguments that the tool's schema refuses."""
        for call in message.tool_calls:
            if call.name not in self.tools:
                raise ConfigurationError(f"there is no tool {call.name!r}; offered are {', '.join(self.tools)}")
            try:
                self.tools[call.name].parse(call.arguments)
            except ToolError as error:
                raise ConfigurationError(f"{call.name}: {error}") from error
        self._edited = message

    def edit_arguments(self, arguments: str, *, number: int = 0) -> None:
        """Put other arguments, as JSON, into a call of the turn's message."""
        message = self._edited or self.message()
        if message is None or number >= len(message.tool_calls):
            raise ConfigurationError(f"the message at turn {self.at} has no call {number + 1}")
        calls = list(message.tool_calls)
        calls[number] = replace(calls[number], arguments=arguments)
        self.edit_message(replace(message, tool_calls=tuple(calls)))

    def edit_call(self, name: str, arguments: str) -> None:
        """Put one call in place of the turn's message, which keeps its reasoning."""
        old = self.message()
        reasoning = old.reasoning_content if old else None
        self.edit_message(
            Message("assistant", reasoning_content=reasoning, tool_calls=(ToolCall("", name, arguments),))
        )

    def edit_text(self, text: str) -> None:
        """Put a text without a call in place of the turn's message."""
        self.edit_message(Message("assistant", text))

    def edit_result(self, call_id: str, text: str) -> None:
        """Put another text in place of a tool's result before the turn. What follows is
        counterfactual: its outcome counts for nothing."""
        self._results[call_id] = text

    def edit_system(self, text: str) -> None:
        """Put another system text before the whole conversation."""
        first, *others = self.task.messages
        behind = others if first.role == "system" else [first, *others]
        self._task = replace(self.task, messages=(Message("system", text), *behind))

    def play_on(
        self, num: int = 1, *, temperature: float = 0.0, seed: int = 0, only_one_turn: bool = False
    ) -> list[Node]:
        """Play the turn's edit on, `num` times; without an edit the turn itself is written anew. A
        single branch is stood in, behind the turn; of several none is."""
        fork = self._fork(num=num, seed=seed if num > 1 or temperature else None)
        branches = self.player.branches([fork], temperature=temperature, max_turns=self.at if only_one_turn else None)
        added = [self._added(branch) for branch in branches]
        if num == 1:
            self.current, self.at = added[0].number, min(self.at + 1, len(added[0].episode.turns))
            self.undo()
        return added

    def save(self, *, who: str, num: int = 8, seed: int = 0, code: str = "") -> VerifiedEdit | tuple[bool, ...]:
        """Verify the edit that the turn has, or the one that made the current branch."""
        node = self.node
        if self._edited is not None:
            fork = self._fork()
        elif node.parent is not None and node.edited is not None:
            fork = Fork(self.task, self.nodes[node.parent].episode, node.at, node.edited)
        else:
            raise ConfigurationError("there is no edited message to verify: edit one, or go to a branch that has one")
        [found] = verify([fork], self.player, who=who, num=num, seed=seed, code=code)
        return found

    def side_effects(self) -> list[str]:
        """Tools that changed something in the turns that playing on drops."""
        return self._fork().side_effects(self.player.domain.tools)

    def first_difference(self, one: int, other: int) -> int | None:
        """The first turn at which two branches differ; None where they are the same."""
        turns = [self._own_messages(number) for number in (one, other)]
        for number, (mine, theirs) in enumerate(zip(*turns, strict=False), 1):
            if (mine.content, [(c.name, c.arguments) for c in mine.tool_calls]) != (
                theirs.content,
                [(c.name, c.arguments) for c in theirs.tool_calls],
            ):
                return number
        return min(map(len, turns)) + 1 if len(turns[0]) != len(turns[1]) else None

    def _own_messages(self, number: int) -> Sequence[Message]:
        episode = self.nodes[number].episode
        return [episode.messages[turn.message_index] for turn in episode.turns if turn.message_index is not None]

    def _fork(self, *, num: int = 1, seed: int | None = None) -> Fork:
        return Fork(self._task or self.task, self.node.episode, self.at, self._edited, dict(self._results), num, seed)

    def _added(self, branch: Branch) -> Node:
        node = Node(
            len(self.nodes),
            branch.trajectory,
            self.current,
            self.at,
            branch.fork.message,
            branch.counts and self.node.counts,
        )
        self.nodes.append(node)
        return node


def _is_call(call: ToolCall, name: str, wanted: Mapping[str, str]) -> bool:
    given = json_object(call.arguments) or {}
    return call.name == name and all(str(given.get(key)) == value for key, value in wanted.items())


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
