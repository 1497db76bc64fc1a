"""Holds episodes while they are played: one that meets a condition waits for a person, the others
go on.

A held episode is an ordinary debugging session of what was played so far. Its last message has not
been acted on yet: `release` hands over the one that the session has put there, or the agent's own.
"""

import asyncio
import copy
import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from posttrain.debug.player import Player
from posttrain.debug.session import Session
from posttrain.debug.terminal import Debugger
from posttrain.rollout.episode import Episode, Reply
from posttrain.rollout.episodes import run_episodes
from posttrain.types import Message, StopReason, Task, Trajectory


@dataclass(frozen=True, slots=True)
class Held:
    """An episode that waits, as a session that stands at its last turn."""

    session: Session
    answer: "Future[Message | None]"

    def release(self) -> None:
        """Let the episode go on with the message that stands at its last turn."""
        session = self.session
        is_there = not session.current and session.at == len(session.recorded.turns)
        self.answer.set_result(session.pending if is_there else None)


class LiveEpisodes:
    """Plays an episode of each task by `player`, in a thread, as a policy whose replies may be
    held. `held` gives the episodes that meet the condition of `Session.turns_where`, and None at
    the end. `beside` plays the sessions' branches: an engine takes requests of one thread."""

    def __init__(self, tasks: Sequence[Task], player: Player, beside: Player, condition: str, *, seed: int = 0) -> None:
        nothing = Trajectory(tasks[0].task_id, tasks[0].messages, StopReason.DONE)
        Session(tasks[0], nothing, beside).turns_where(condition)  # refuses an unknown one before anything is played
        self.held: queue.Queue[Held | None] = queue.Queue()
        self.played: Sequence[Trajectory] = ()
        self.error: BaseException | None = None
        self._tasks, self._player, self._beside, self._condition, self._seed = tasks, player, beside, condition, seed
        self._policy = player.policy_at(0.0)
        self.is_over = False
        threading.Thread(target=self._play, daemon=True).start()

    def hold_no_more(self) -> None:
        """Let all go on by themselves."""
        self.is_over = True
        while (held := self.held.get()) is not None:
            held.release()

    def _play(self) -> None:
        domain, seeds = self._player.domain, [self._seed] * len(self._tasks)
        limits = self._player.limits.model_copy(update={"max_seconds": 1e9, "max_aborted_frac": 1.0})
        try:
            self.played = run_episodes(self, self._tasks, domain=domain, limits=limits, seeds=seeds)
        except BaseException as error:
            self.error = error
        finally:
            self.held.put(None)

    async def reply(self, episode: Episode) -> Reply:
        """The policy's, or where the condition holds what a person puts in its place."""
        reply = await self._policy.reply(episode)
        if reply.message is None or self.is_over:
            return reply
        played = _with_reply(episode, reply)
        session = Session(episode.task, played, self._beside, at=len(played.turns))
        if session.at not in session.turns_where(self._condition):
            return reply
        answer: Future[Message | None] = Future()
        self.held.put(Held(session, answer))
        if (edited := await asyncio.wrap_future(answer)) is None:
            return reply
        codec = self._player.codec
        tokens = [] if codec is None else codec.encode_assistant(edited)
        return Reply(edited, context_ids=[*reply.context_ids, *tokens])

    def release(self, episode: Episode) -> None:
        self._policy.release(episode)


class LiveDebugger(Debugger):
    """The debugger of one held episode."""

    def __init__(self, live: LiveEpisodes, held: Held, *, who: str, code: str = "") -> None:
        super().__init__(held.session, who=who, code=code)
        self._live, self._held = live, held

    def do_release(self, _: str) -> bool:
        """release: the episode goes on with the edited message, or with its own"""
        self._held.release()
        return True

    def do_quit(self, _: str) -> bool:
        """quit: hold no more; all episodes go on by themselves"""
        self._held.release()
        self._live.hold_no_more()
        return True

    do_EOF = do_quit


def debug_live(live: LiveEpisodes, *, who: str, code: str = "") -> None:
    """Debug one held episode after another, until all have ended; then their outcomes."""
    while not live.is_over and (held := live.held.get()) is not None:
        LiveDebugger(live, held, who=who, code=code).cmdloop()
    if live.error is not None:
        raise live.error
    print(f"{sum(one.is_strict_success for one in live.played)} of {len(live.played)} succeed")


def _with_reply(episode: Episode, reply: Reply) -> Trajectory:
    """The record as it would be with this reply; the episode stays as it is."""
    with_reply = copy.copy(episode)
    with_reply.on_first_reply = lambda: None
    with_reply.now = episode.now.continued(len(episode.turns), episode.messages, episode.now.schemas)
    with_reply.add_reply(reply)
    return with_reply.trajectory(StopReason.DONE)
