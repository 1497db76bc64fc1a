"""Reads whole episodes from the trace store, and writes one as a line of JSONL that other tools and
`posttrain health` read."""

import json
import math
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from posttrain.data.schemas import delegated_columns, task_from_columns
from posttrain.traces.packing import storable, unpack
from posttrain.traces.store import damaged
from posttrain.traces.values import Run, StoredEpisode
from posttrain.types import Outcome

_EPISODE = """
SELECT uid, stage, key, started_at, settings, t.content, is_success, advantage, step, part, b.content, token_ids, mask,
logprobs FROM episodes e
LEFT JOIN runs r ON r.id = e.run LEFT JOIN tasks t ON t.id = e.task LEFT JOIN bodies b ON b.episode = e.id
WHERE e.id = ?
"""
_UNREADABLE = (zlib.error, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, StopIteration)


def read_episode(connection: sqlite3.Connection, episode_id: int) -> StoredEpisode | None:
    """The episode; None where there is none of that number (any more). Raises DataError where its
    rows cannot be unpacked."""
    row = connection.execute(_EPISODE, (episode_id,)).fetchone()
    if row is None:
        return None
    uid, stage, key, started_at, settings, task, is_success, advantage, step, part, *body = row
    try:
        figures = {"advantage": advantage, "step": step, "part": part}
        is_success = None if is_success is None else bool(is_success)
        traced = unpack(tuple(body), task_from_columns(json.loads(task)), is_success=is_success, **figures)
        return StoredEpisode(episode_id, Run(uid, stage, key, started_at, json.loads(settings)), traced)
    except _UNREADABLE as error:
        [(file,)] = connection.execute("SELECT file FROM pragma_database_list WHERE name = 'main'")
        raise damaged(file, f"episode {episode_id} cannot be read: {error}") from error


def read_episodes(connection: sqlite3.Connection, episode_ids: Iterable[int]) -> Iterator[StoredEpisode]:
    """Episodes in the order of the ids, one in memory at a time; those that are gone are left
    out."""
    return (episode for episode_id in episode_ids if (episode := read_episode(connection, episode_id)) is not None)


def export_line(episode: StoredEpisode) -> str:
    """One JSON object: OpenAI's `messages`, the rest named as in `Trajectory` and `Task`. NaN and
    infinity, which JSON has not, are null."""
    messages = [message.to_openai() for message in episode.traced.trajectory.messages]
    return json_line({**episode_columns(episode), "messages": messages, **token_columns(episode)})


def episode_columns(episode: StoredEpisode) -> dict[str, Any]:
    """All of an episode but its messages and tokens, as JSON values."""
    run, traced = episode.run, episode.traced
    task, trajectory = traced.task, traced.trajectory
    return {
        "episode": episode.episode_id,
        "stage": run.stage,
        "run": run.uid,
        "run_key": run.key,
        "part": traced.part,
        "step": traced.step,
        "task_id": task.task_id,
        "labels": dict(task.labels),
        "split": task.split,
        "template": task.template,
        "entities": list(task.entities),
        "turns": [asdict(turn) for turn in trajectory.turns],
        "scores": {name: _finite(value) for name, value in trajectory.scores.items()},
        "reward": _finite(trajectory.reward),
        "advantage": _finite(traced.advantage),
        "is_success": traced.is_success,
        "outcome": None if trajectory.outcome is None else _finite_outcome(trajectory.outcome),
        "window_starts": list(trajectory.window_starts),
        "window_roles": list(trajectory.window_roles),
        "delegated": [delegated_columns(one) for one in trajectory.delegated],
        "num_forks": trajectory.num_forks,
        "stop_reason": str(trajectory.stop_reason),
        "failure": trajectory.failure,
        "seed": trajectory.seed,
        "policy_version": trajectory.policy_version,
    }


def token_columns(episode: StoredEpisode) -> dict[str, Any]:
    """Token ids, mask and log-probabilities, all of one length."""
    trajectory = episode.traced.trajectory
    logprobs = [_finite(logprob) for logprob in trajectory.logprobs]
    return {"token_ids": list(trajectory.token_ids), "mask": list(trajectory.mask), "logprobs": logprobs}


def json_line(content: Mapping[str, Any]) -> str:
    return storable(json.dumps(content, ensure_ascii=False, allow_nan=False))


def _finite_outcome(outcome: Outcome) -> dict[str, Any]:
    turn_scores = [_finite(score) for score in outcome.turn_scores]
    return {**asdict(outcome), "reward": _finite(outcome.reward), "turn_scores": turn_scores}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
