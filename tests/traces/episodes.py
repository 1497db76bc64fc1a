"""Played episodes of the lock world, and a store with some of them: what the tests of this folder
share."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from posttrain.rollout.episodes import run_episodes
from posttrain.rollout.policy import ScriptedPolicy, TokenPolicy
from posttrain.traces.query import EpisodeFilter, matching
from posttrain.traces.reading import read_episode
from posttrain.traces.store import open_to_read
from posttrain.traces.values import Run, StoredEpisode, TracedEpisode
from posttrain.traces.writer import TraceWriter
from posttrain.types import Message, Task
from tests.rollout.lock_world import LIMITS, LockDomain, ScriptedExpert, WordCodec, arguments_of, call, lock_task, say
from tests.rollout.scripted_engine import ScriptedEngine

TRY_123 = 'call try_code {"code":"123"}'
ANY_LOST = LIMITS.model_copy(update={"max_aborted_frac": 1.0})


def spoken(*lines: Message, task: Task | None = None, domain: Any = None, limits: Any = ANY_LOST) -> TracedEpisode:
    """An episode by a script, without tokens."""
    task = task or lock_task()
    policy = ScriptedPolicy(lambda task, seed: ScriptedExpert(list(lines)))
    [trajectory] = run_episodes(policy, [task], domain=domain or LockDomain(), limits=limits, seeds=[5])
    return TracedEpisode(trajectory, task)


def written(
    *lines: tuple[str, bool], task: Task | None = None, limits: Any = LIMITS
) -> tuple[TracedEpisode, WordCodec]:
    """An episode by tokens, one a word; the bool says whether the stop token follows."""
    task, codec = task or lock_task(), WordCodec()
    engine = ScriptedEngine({5: [codec.ids(text) + ([0] if ends else []) for text, ends in lines]})
    [trajectory] = run_episodes(
        TokenPolicy(engine, codec, temperature=1.0), [task], domain=LockDomain(), limits=limits, seeds=[5]
    )
    return TracedEpisode(trajectory, task), codec


def opened() -> TracedEpisode:
    """Two turns: the right code, and a last word."""
    return spoken(call("try_code", arguments_of("123")), say("done"))


def run_of(stage: str, uid: str | None = None, *, started_at: float = 0.0) -> Run:
    return Run(uid or stage, stage, "abc", started_at, {})


def refuse(message: str) -> None:
    raise AssertionError(message)


def record(
    path: Path,
    stage: str,
    episodes: Sequence[TracedEpisode],
    *,
    uid: str | None = None,
    started_at: float = 0.0,
    max_bytes: int = 10**9,
    warn: Callable[[str], None] = refuse,
) -> None:
    writer = TraceWriter(path, run_of(stage, uid, started_at=started_at), max_bytes=max_bytes, warn=warn)
    writer.record(episodes)
    writer.close()


def ids(path: Path, **conditions: Any) -> list[int]:
    connection = open_to_read(path)
    try:
        return matching(connection, EpisodeFilter(**conditions))
    finally:
        connection.close()


def read(path: Path, episode_id: int) -> StoredEpisode | None:
    connection = open_to_read(path)
    try:
        return read_episode(connection, episode_id)
    finally:
        connection.close()
