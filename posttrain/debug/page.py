"""The debugger as a page: lists the trace store's episodes, and holds the `Session` of an open one.

The page keeps nothing: each command calls one method and is answered with the whole state. What
plays runs in a thread, one at a time; until it ends, every other command is refused (409).
`posttrain/debug/server.py` serves it.
"""

import json
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from sqlite3 import Connection
from typing import Annotated, Any, Literal

from pydantic import Field

from posttrain.data.edits import EDITS
from posttrain.debug.server import run_command
from posttrain.debug.session import Mode, Node, Session, message_text
from posttrain.debug.suggest import Suggestion
from posttrain.debug.terminal import NO_TURN, keep
from posttrain.rollout.prefix import recorded_turns
from posttrain.runtime.control_chars import escape_control_chars
from posttrain.runtime.exits import ConfigurationError, DataError
from posttrain.runtime.limits import cut
from posttrain.traces.query import EpisodeFilter, groups, matching, parse_steps, stages, trainings
from posttrain.traces.reading import read_episodes
from posttrain.traces.show import transcript
from posttrain.traces.values import StoredEpisode
from posttrain.types import MAX_NUMBER, Message, ToolCall, Trajectory

TEMPLATE = Path(__file__).with_name("page.html")
_MAX_SHOWN = 20_000  # characters of one text on the page
_MAX_EDITED = 200_000  # characters of a text that an editor begins with
_MAX_LINE = 300  # characters of a message in the timeline and in lists
_MAX_TOKENS = 4_000
_MAX_LISTED = 100  # episodes
_MAX_READ = 4_000  # episodes looked into for a text or a failure's class: about a second
_WAIT_S = 0.3  # for a play that ends at once
_PLAYS = ("open", "play", "suggest", "save", "world")
_NumPlays = Annotated[int, Field(ge=1, le=256)]


class DebugPage:
    """The commands of the page. `open_store` opens the trace store, `session_of` makes a session of
    an episode with who plays on. `who` edits; `code` is the version of the tree. `playing` names
    the play that runs, if one does."""

    def __init__(
        self,
        open_store: Callable[[], AbstractContextManager[Connection]],
        session_of: Callable[[StoredEpisode], Session],
        *,
        who: str,
        code: str = "",
        edits: Path = EDITS,
    ) -> None:
        self.session: Session | None = None
        self._open_store, self._session_of = open_store, session_of
        self._who, self._code, self._edits = who, code, edits
        self._stored: dict[int, StoredEpisode] = {}  # by branch
        self._suggested: dict[int, Suggestion] = {}  # by branch
        self._lock, self.playing, self._since, self._progress = threading.Lock(), "", 0.0, (0, 0)
        self._told: dict[str, Any] = {}  # of the play that ended last

    def run(self, name: str, given: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        """Run a command; the status of its answer, and the answer."""
        with self._lock:
            if self.playing:
                playing = {"name": self.playing, "seconds": time.monotonic() - self._since, "progress": self._progress}
                error = {"error": f"{self.playing} is still running: wait until it ends"}
                return (202, {"playing": playing}) if name == "state" else (409, {**error, "playing": playing})
            if name == "state":
                told, self._told = self._told, {}
                return 200, _clean({**told, **self._state()})
            if (command := self._commands().get(name)) is None:
                why = "there is no such command" if self.session else "no episode is open"
                return 404, {"error": f"{name}: {why}"}
            if name not in _PLAYS:
                told = run_command(command, given)
                return 400 if "error" in told else 200, _clean({**told, **self._state()})
            self.playing, self._since, self._progress = name, time.monotonic(), (0, 0)
        play = threading.Thread(target=self._play, args=(command, given), daemon=True)
        play.start()
        play.join(_WAIT_S)
        status, answer = self.run("state", {})
        return 400 if "error" in answer else status, answer

    def _play(self, command: Callable[..., Any], given: Mapping[str, Any]) -> None:
        told: dict[str, Any] = {"error": "it failed by a mistake of ours: the terminal has the traceback"}
        try:
            told = run_command(command, given)
        finally:
            with self._lock:
                self._told, self.playing = told, ""

    def _commands(self) -> dict[str, Callable[..., Any]]:
        found: dict[str, Callable[..., Any]] = {"open": self.open, "episodes": self._episodes, "groups": self._groups}
        if (session := self.session) is None:
            return found
        found |= {"go": session.go_to, "break": self._break, "check": self._check, "compare": self._compare}
        found |= {"message": self._message, "result": session.edit_result, "undo": session.undo}
        found |= {"system": session.edit_system, "offer": session.edit_tools, "mode": self._mode}
        return found | {"play": self._play_on, "suggest": self._suggest, "save": self._save, "world": self._world}

    # -- the trace store

    def open(self, episode: int, others: Annotated[list[int], Field(max_length=64)] = [], at: int = 1) -> None:  # noqa: B006  # pydantic copies it
        """Open an episode, with others of its task as further branches."""
        with self._open_store() as connection:
            found = list(read_episodes(connection, [episode, *others]))
        if not found or found[0].episode_id != episode:
            raise DataError(f"there is no episode {episode} (any more)")
        if any(one.traced.task != found[0].traced.task for one in found):
            raise ConfigurationError("these are episodes of several tasks; one session has those of one")
        session = self._session_of(found[0])
        session.player = replace(session.player, progress=self._note_progress)
        session.add_recorded([one.traced.trajectory for one in found[1:]])
        session.go_to(at)
        self.session, self._suggested, self._stored = session, {}, dict(enumerate(found))

    def _episodes(
        self,
        stage: str = "",
        steps: str = "",
        low: float | None = None,
        high: float | None = None,
        outcome: Literal["", "failed", "success"] = "",
        failure: str = "",
        text: str = "",
    ) -> dict[str, Any]:
        """The newest episodes that match. A failure's class and a text are looked for in the newest
        episodes only."""
        wanted = EpisodeFilter(
            stage=stage or None,
            steps=parse_steps(steps or None),
            is_failed=outcome == "failed",
            is_success=outcome == "success",
            rewards=(-MAX_NUMBER if low is None else low, MAX_NUMBER if high is None else high)
            if (low, high) != (None, None)
            else None,
        )

        def has(one: StoredEpisode) -> bool:
            trajectory = one.traced.trajectory
            return failure in _failure(trajectory) and (not text or text.lower() in transcript(trajectory).lower())

        with self._open_store() as connection:
            ids = matching(connection, wanted)
            found = list(islice(filter(has, read_episodes(connection, ids[:_MAX_READ])), _MAX_LISTED))
            known = stages(connection)
        is_whole = not (failure or text) or len(ids) <= _MAX_READ
        searched = "" if is_whole else f", of which the newest {_MAX_READ:,} were searched"
        told = f"{len(found)} of {len(ids):,} episodes{searched}"
        return {"episodes": [_listed(one) for one in found], "told": told, "stages": known}

    def _groups(self, run: int | None = None) -> dict[str, Any]:
        """The groups of a training's rollouts, those of the newest training by default."""
        with self._open_store() as connection:
            known = trainings(connection)
            run = run if run is not None else next(iter(known), None)
            found = [] if run is None else groups(connection, run)
        return {"runs": known, "run": run, "groups": [asdict(one) for one in found]}

    # -- the session

    def _break(self, condition: str) -> str:
        return "" if self._open.go_to_next(condition) else NO_TURN

    def _message(self, message: Message) -> None:
        self._open.edit_message(replace(message, role="assistant"))

    def _check(self, calls: list[ToolCall]) -> dict[str, Any]:
        return {"problems": [self._open.problem(call) for call in calls]}

    def _mode(self, mode: Mode, anyway: bool = False) -> None:
        self._open.mode, self._open.allow_differences = mode, anyway

    def _compare(self, nodes: Annotated[list[int], Field(min_length=2, max_length=64)]) -> dict[str, Any]:
        """The turns of branches, of each with the first that differs from the first branch's."""
        session, compared = self._open, []
        for number in nodes:
            differs = session.first_difference(nodes[0], number)
            node = session.nodes[number]
            turns = [list(map(_shown, _of_turn(node.episode, at + 1))) for at in range(len(node.episode.turns))]
            compared.append({**self._node(node), "differs": differs, "turns": turns})
        return {"compared": compared}

    def _play_on(
        self,
        num: _NumPlays = 1,
        temperature: Annotated[float | None, Field(ge=0, le=10)] = None,
        only_one_turn: bool = False,
    ) -> str:
        nodes = self._open.play_on(num, temperature=temperature, only_one_turn=only_one_turn)
        return f"{sum(one.episode.is_strict_success for one in nodes)} of {num} succeed" if num > 1 else ""

    def _suggest(self, num: _NumPlays = 8) -> str:
        found = self._suggested[self._open.current] = self._open.suggest(num)
        return f"edit turn {found.turn} first"

    def _save(self, num: _NumPlays = 8) -> str:
        return keep(self._open.save(who=self._who, num=num, code=self._code), self._edits)

    def _world(self) -> dict[str, Any]:
        return {"world": cut(self._open.world_state(), _MAX_SHOWN) or "this world shows no state"}

    @property
    def _open(self) -> Session:
        assert self.session is not None
        return self.session

    def _note_progress(self, num_done: int, num: int) -> None:
        self._progress = (num_done, num)

    # -- the state

    def _state(self) -> dict[str, Any]:
        """All that the page shows; the texts in `draft` are as they are, for editors."""
        if (session := self.session) is None:
            return {"session": None}
        outcome, here = session.node.episode.outcome, self._stored.get(session.current)
        about = {**_listed(self._stored[0]), "player": session.player.name, "split": session.task.split}
        stands: dict[str, Any] = {"at": session.at, "current": session.current, "mode": session.mode}
        stands |= {"anyway": session.allow_differences, "warnings": session.warnings()}
        stands |= {"has_other_task": session.task_here != session.node.task, "offered": list(session.tools)}
        grades: dict[str, Any] = {"goal": cut(session.goal, _MAX_SHOWN), "scores": session.scores}
        grades |= {"feedback": outcome.feedback if outcome else ""}
        grades |= {"advantage": here.traced.advantage if here else None}
        read = [session.node.episode.messages[place] for place in session.places(session.at)]
        results = session.pending_results
        pending = None if session.pending is None else _shown(session.pending)
        texts = {"read": [_shown(one, results) for one in read], "pending": pending, "tokens": _tokens(session)}
        was = {one.tool_call_id: one.content for one in read if one.role == "tool" and one.tool_call_id}
        draft = {
            "message": _draft(session.pending or session.message()),
            "results": {call: _editable(results.get(call, text)) for call, text in was.items()},
            "system": _editable(next((one.content for one in session.task_here.messages if one.role == "system"), "")),
        }
        tools = [
            {"name": one.name, "description": one.description, "parameters": json.dumps(one.parameters)}
            for one in session.player.domain.tools.values()
        ]
        nodes, turns = [self._node(one) for one in session.nodes], self._turns(session)
        lists = {"nodes": nodes, "turns": turns, "tools": tools, "draft": draft}
        return {"session": {"about": about, **stands, **grades, **texts, **lists}}

    def _turns(self, session: Session) -> list[dict[str, Any]]:
        found, suggested, episode = [], self._suggested.get(session.current), session.node.episode
        for at in range(1, session.node.last_turn + 1):
            _, _, logprobs, entropies = _figures(session, at)
            is_written = at <= len(episode.turns)
            outcomes = {run.call_id: run.outcome for turn in episode.turns[at - 1 : at] for run in turn.tool_runs}
            results = [
                {"text": cut(one.content, _MAX_LINE), "outcome": outcomes.get(one.tool_call_id or "", "")}
                for one in _of_turn(episode, at)
                if one.role == "tool"
            ]
            figures = {"logprob": min(logprobs, default=None), "entropy": max(entropies, default=None)}
            value = suggested.values[at - 1] if suggested and is_written else None
            is_suggested = bool(suggested and suggested.turn == at)
            text = cut(message_text(session.message(at)), _MAX_LINE) if is_written else "(not written)"
            found.append({"text": text, "results": results, **figures, "value": value, "is_suggested": is_suggested})
        return found

    def _node(self, node: Node) -> dict[str, Any]:
        """A branch; `differs` is the first turn that is not its parent's, or the first branch's."""
        episode, stored = node.episode, self._stored.get(node.number)
        if episode.reward is None and node.counts:
            episode = self._open.player.score(episode, node.task)
        differs = self._open.first_difference(node.parent or 0, node.number)
        came = {"number": node.number, "parent": node.parent, "at": node.at, "is_edited": node.edited is not None}
        came |= {"episode": stored.episode_id if stored else None, "differs": differs}
        is_success = node.counts and episode.is_success
        return {**came, "result": node.result, "is_success": is_success, "reward": episode.reward}


def _clean(value: Any) -> Any:
    """The value with control characters made visible, but for drafts, and without numbers that JSON
    has not."""
    if isinstance(value, str):
        return escape_control_chars(value)
    if isinstance(value, Mapping):
        return {key: one if key == "draft" else _clean(one) for key, one in value.items()}
    if isinstance(value, Sequence):
        return [_clean(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _listed(stored: StoredEpisode) -> dict[str, Any]:
    traced, trajectory = stored.traced, stored.traced.trajectory
    came = {"episode": stored.episode_id, "stage": stored.run.stage, "part": traced.part, "step": traced.step}
    task = {"task": traced.task.task_id, "cell": "/".join(traced.task.labels.values())}
    result = "aborted" if trajectory.is_aborted else "failed" if traced.is_failed else "success"
    ended = {"result": result, "failure": _failure(trajectory), "reward": trajectory.reward}
    return {**came, **task, **ended, "num_turns": len(trajectory.turns)}


def _failure(trajectory: Trajectory) -> str:
    return trajectory.outcome.failure if trajectory.outcome else ""


def _of_turn(episode: Trajectory, at: int) -> Sequence[Message]:
    """The agent's message at a turn, and what answered it."""
    places = [turn.message_index for turn in episode.turns[at - 1 :]] or [None]
    behind = next((place for place in places[1:] if place is not None), None)
    return () if places[0] is None else episode.messages[places[0] : behind]


def _shown(message: Message, results: Mapping[str, str] = {}) -> dict[str, Any]:
    edited = results.get(message.tool_call_id or "")
    content = message.content if edited is None else edited
    calls = [[call.name, cut(call.arguments, _MAX_SHOWN)] for call in message.tool_calls]
    said = {"text": cut(content, _MAX_SHOWN), "reasoning": cut(message.reasoning_content or "", _MAX_SHOWN)}
    return {"role": message.role, **said, "calls": calls, "id": message.tool_call_id, "is_edited": edited is not None}


def _draft(message: Message | None) -> dict[str, Any]:
    message = message or Message("assistant")
    calls = [asdict(replace(call, arguments=_editable(call.arguments))) for call in message.tool_calls]
    reasoning = _editable(message.reasoning_content or "") or None
    return {"content": _editable(message.content), "reasoning_content": reasoning, "tool_calls": calls}


def _editable(text: str) -> str:
    """The text; nothing where it is too long, because half of it would be put in its place."""
    return text if len(text) <= _MAX_EDITED else ""


def _figures(session: Session, at: int) -> tuple[Sequence[int], Sequence[int], Sequence[float], Sequence[float]]:
    """Tokens read and written at a turn, log-probabilities and entropies; empty where not known."""
    try:
        turn = recorded_turns(session.node.episode)[at - 1]
    except (DataError, IndexError):  # without tokens, or not written yet
        return (), (), (), ()
    entropies = session.entropies(at) if session.player.entropies else ()
    return turn.read, turn.written, turn.logprobs, entropies


def _tokens(session: Session) -> dict[str, Any] | None:
    """The tokens of the turn: those read as one text, and of each written its text,
    log-probability, entropy and whether it is trained on."""
    if (codec := session.player.codec) is None:
        return None
    read, written, logprobs, entropies = _figures(session, session.at)
    end = sum(turn.num_read + turn.num_written for turn in session.node.episode.turns[: session.at])
    mask = session.node.episode.mask[end - len(written) : end]
    texts = [codec.tokenizer.decode([token]) for token in written[:_MAX_TOKENS]]
    columns = zip(texts, logprobs, entropies or [math.nan] * len(written), map(bool, mask), strict=False)
    before = codec.tokenizer.decode(list(read[-_MAX_TOKENS:])) if read else ""
    return {"read": cut(before, _MAX_SHOWN), "written": list(columns), "num": len(written)}
