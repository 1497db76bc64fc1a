"""The debugger in a terminal: each method `do_NAME` is a command, explained by its docstring."""

import cmd
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast, get_args

from posttrain.data.edits import EDITS, VerifiedEdit, add_edits
from posttrain.debug.session import Mode, Node, Session, message_text, parse_message
from posttrain.debug.suggest import num_plays
from posttrain.evals.significance import difference_of_shares
from posttrain.rollout.prefix import recorded_turns
from posttrain.runtime.control_chars import visible_line
from posttrain.runtime.exits import ConfigurationError, StageError
from posttrain.traces.show import transcript
from posttrain.types import Message

NO_TURN = "no turn of this branch does"


class Debugger(cmd.Cmd):
    """Reads commands from stdin, a line each. `who` edits; `code` is the version of the tree."""

    prompt = "(debug) "

    def __init__(self, session: Session, *, who: str, code: str = "", edits: Path = EDITS) -> None:
        super().__init__()
        self.session, self._who, self._code, self._edits = session, who, code, edits

    def preloop(self) -> None:
        if not sys.stdin.isatty():
            self.prompt = ""
        self.do_turns("")

    def precmd(self, line: str) -> str:
        """Commands of a pipe are shown beside what they say."""
        if not self.prompt and line != "EOF":
            self.say(f"(debug) {line}")
        return line

    def onecmd(self, line: str) -> bool:
        """Run one command; a wrong one is explained and changes nothing."""
        try:
            return bool(super().onecmd(line))
        except (StageError, ValueError) as error:
            self.say(str(error))
            return False

    def emptyline(self) -> bool:
        return False

    def default(self, line: str) -> None:
        self.say(f"there is no command {line.split()[0]!r}; `help` lists them")

    def do_quit(self, _: str) -> bool:
        """quit: end"""
        return True

    do_EOF = do_quit  # as cmd names the end of stdin

    # -- look

    def do_turns(self, _: str) -> None:
        """turns: the agent's messages of this branch, a line each; * is where you stand"""
        session, node = self.session, self.session.node
        self.say(f"branch {node.number}: {node.result}")
        for number in range(1, node.last_turn + 1):
            is_here, is_written = number == session.at, number <= len(node.episode.turns)
            text = message_text(session.message(number)) if is_written else "(not written)"
            self.say(f"{'*' if is_here else ' '} {number}  {text}")
            if is_here and session.pending is not None:
                self.say(f"  → {message_text(session.pending)}   (edited, not played on)")

    def do_show(self, text: str) -> None:
        """show [TURN]: what the agent read since its last message, and what it wrote"""
        node = self.session.node
        places = self.session.places(self._turn(text, node.last_turn))
        print(transcript(node.episode, places).lstrip("\n"), file=self.stdout)

    def do_tokens(self, text: str) -> None:
        """tokens [TURN]: the agent's tokens, each with its log-probability and entropy (nats)"""
        codec = self.session.player.codec
        if codec is None:
            raise ConfigurationError("tokens are a model's: begin with --model")
        turns = recorded_turns(self.session.node.episode)
        at = self._turn(text, len(turns))
        columns = zip(turns[at - 1].written, turns[at - 1].logprobs, self.session.entropies(at), strict=True)
        for token, logprob, entropy in columns:
            self.say(f"{logprob:8.3f}  {entropy:6.3f}  {codec.tokenizer.decode([token])!r}")

    def do_goal(self, _: str) -> None:
        """goal: what the world grades by, and the scores of this branch"""
        episode = self.session.node.episode
        self.say(self.session.goal)
        reward = "" if episode.reward is None else f"reward {episode.reward:.3f}  "
        self.say(reward + "  ".join(f"{name} {value:.2f}" for name, value in self.session.scores.items()))

    def do_world(self, _: str) -> None:
        """world: the state of the world before this turn"""
        self.say(self.session.world_state() or "this world shows no state")

    def do_tools(self, _: str) -> None:
        """tools: the tools that are offered, with their parameters"""
        for tool in self.session.tools.values():
            self.say(f"{tool.name}({', '.join(tool.parameters.get('properties', {}))}): {tool.description}")

    def do_tree(self, _: str) -> None:
        """tree: all branches with their outcomes"""
        for node in self.session.nodes:
            for line in self._tree(node, 0) if node.parent is None else ():
                self.say(line)

    def do_compare(self, text: str) -> None:
        """compare A B: the first turn at which two branches differ"""
        one, other = (int(word) for word in text.split())
        turn = self.session.first_difference(one, other)
        self.say("the same" if turn is None else f"they differ from turn {turn} on")

    def do_suggest(self, text: str) -> None:
        """suggest [N]: the turn to edit first, by N plays on from each (8)"""
        num = int(text or 8)
        self.say(f"{num_plays([self.session.node.episode], num)} plays")
        found = self.session.suggest(num)
        values = "  ".join(f"{number}: {100 * value:.0f} %" for number, value in enumerate(found.values, 1))
        self.say(f"success from each turn on: {values}\nedit turn {found.turn} first")

    # -- edit

    def do_go(self, text: str) -> None:
        """go TURN [BRANCH]: stand at another turn, also of another branch"""
        at, *branch = (int(word) for word in text.split())
        self.session.go_to(at, *branch)
        self.do_turns("")

    def do_break(self, text: str) -> None:
        """break tool NAME [KEY=VALUE] | error | credit | logprob X | entropy X | part BRANCH: stand
        at the next turn where that holds"""
        if self.session.go_to_next(text):
            self.do_turns("")
        else:
            self.say(NO_TURN)

    def do_call(self, text: str) -> None:
        """call NAME {JSON}: put this call in place of the agent's message"""
        name, _, arguments = text.partition(" ")
        self._edit(lambda: self.session.edit_call(name, arguments or "{}"))

    def do_args(self, text: str) -> None:
        """args {JSON}: put these arguments into the message's first call"""
        self._edit(lambda: self.session.edit_arguments(text))

    def do_say(self, text: str) -> None:
        """say TEXT: put this text in place of the agent's message"""
        self._edit(lambda: self.session.edit_message(Message("assistant", text)))

    def do_message(self, text: str) -> None:
        """message {JSON}: put any message of OpenAI's chat format in place of the agent's"""
        self._edit(lambda: self.session.edit_message(parse_message(text)))

    def do_result(self, text: str) -> None:
        """result CALL TEXT: put another text in place of a tool's result before this turn"""
        call, _, result = text.partition(" ")
        self.session.edit_result(call, result)
        self.say("edited: what follows is counterfactual, and its outcome counts for nothing")

    def do_system(self, text: str) -> None:
        """system TEXT: put another system text before the conversation"""
        self.session.edit_system(text)
        self.say("the system text is edited")

    def do_offer(self, text: str) -> None:
        """offer NAME …: offer these tools, and no others"""
        self.session.edit_tools(text.split())
        self.do_tools("")

    def do_undo(self, _: str) -> None:
        """undo: drop what was edited and not played on"""
        self._edit(self.session.undo)

    # -- play on

    def do_mode(self, text: str) -> None:
        """mode stub | pin | live [anyway]: tools answer as recorded; they run anew and the policy
        is greedy; they run and the policy samples. `anyway` goes on where the world answers
        otherwise than recorded"""
        mode, *more = text.split() or [self.session.mode]
        if mode not in get_args(Mode) or more not in ([], ["anyway"]):
            raise ConfigurationError("mode stub, pin or live, and anyway behind it")
        self.session.mode, self.session.allow_differences = cast(Mode, mode), bool(more)
        self.say(f"mode {mode}{' anyway' if more else ''}")

    def do_step(self, _: str) -> None:
        """step: the policy writes one turn"""
        self._play_on(only_one_turn=True)

    def do_continue(self, _: str) -> None:
        """continue: the policy plays on to the end"""
        self._play_on(only_one_turn=False)

    def do_fork(self, text: str) -> None:
        """fork N [TEMPERATURE]: N branches to the end, sampled at temperature 1"""
        num, *more = text.split() or ["8"]
        self._warn()
        nodes = self.session.play_on(int(num), temperature=float(more[0]) if more else 1.0)
        self.say(f"{sum(one.episode.is_strict_success for one in nodes)} of {num} succeed")
        self.do_tree("")

    def do_save(self, text: str) -> None:
        """save [N]: verify the edit by N plays with and without it (8), keep it where it helps"""
        self.say(keep(self.session.save(who=self._who, num=int(text or 8), code=self._code), self._edits))

    def say(self, text: str) -> None:
        """Print lines in which nothing controls the terminal."""
        for line in text.splitlines():
            print(visible_line(line), file=self.stdout)

    def _turn(self, text: str, most: int) -> int:
        at = int(text) if text else self.session.at
        if not 1 <= at <= most:
            raise ConfigurationError(f"this branch has the turns 1 to {most}")
        return at

    def _edit(self, edit: Callable[[], None]) -> None:
        edit()
        self.do_turns("")

    def _play_on(self, *, only_one_turn: bool) -> None:
        self._warn()
        self.session.play_on(only_one_turn=only_one_turn)
        self.do_turns("")

    def _warn(self) -> None:
        for line in self.session.warnings():
            self.say(line)

    def _tree(self, node: Node, depth: int) -> Iterator[str]:
        where = "recorded" if node.parent is None else f"from turn {node.at}{', edited' if node.edited else ''}"
        here = "*" if node.number == self.session.current else " "
        yield f"{here} {'  ' * depth}{node.number}  {where}: {node.result}"
        for child in self.session.nodes:
            if child.parent == node.number:
                yield from self._tree(child, depth + 1)


def keep(found: VerifiedEdit | tuple[bool, ...], path: Path) -> str:
    """Add what `Session.save` found to the edits, where it helps, and tell of it."""
    if not isinstance(found, VerifiedEdit):
        return f"not kept: {sum(found)} of {len(found)} succeed behind it, no more than without it"
    is_new = add_edits([found], path)
    return f"{'kept' if is_new else 'already kept'} as {found.edit_id} in {path}: {gain_text(found)}"


def gain_text(edit: VerifiedEdit) -> str:
    """`1 of 8 → 7 of 8 (+75 points, +27 … +91)`."""
    difference, low, high = difference_of_shares(edit.before, edit.after)
    shares = f"{sum(edit.before)} of {len(edit.before)} → {sum(edit.after)} of {len(edit.after)}"
    return f"{shares} ({100 * difference:+.0f} points, {100 * low:+.0f} … {100 * high:+.0f})"
