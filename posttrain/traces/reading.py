"""An episode as it was recorded, and as a line of JSONL that other tools and `posttrain health` read."""

import json
import math
import sqlite3
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict

from posttrain.exits import DataError
from posttrain.traces.packing import storable, unpack, unpack_task
from posttrain.traces.values import Run, StoredEpisode

_EPISODE = """
SELECT e.*, b.*, r.uid, r.stage, r.key, r.started_at, r.settings, t.content AS task_content
FROM episodes e JOIN bodies b ON b.episode = e.id JOIN runs r ON r.id = e.run JOIN tasks t ON t.id = e.task WHERE e.id = ?
"""
_TURNS = "SELECT number, num_read, num_written, policy_version, latency_s, message_index FROM turns WHERE episode = ? ORDER BY number"
_CALLS = """
SELECT number, turn, t.name, outcome, num_attempts, latency_s, call_id FROM calls JOIN tools t ON t.id = tool WHERE episode = ? ORDER BY number
"""


def read_episode(connection: sqlite3.Connection, episode_id: int) -> StoredEpisode | None:
    """None where there is no such episode (any more). Raises DataError where what is stored of it cannot be read."""
    cursor = connection.execute(_EPISODE, (episode_id,))
    columns = cursor.fetchone()
    if columns is None:
        return None
    row = dict(zip((name for name, *_ in cursor.description), columns, strict=True))
    turns, calls = (connection.execute(statement, (episode_id,)).fetchall() for statement in (_TURNS, _CALLS))
    try:
        run = Run(row["uid"], row["stage"], row["key"], row["started_at"], json.loads(row["settings"]))
        return StoredEpisode(episode_id, run, unpack(row, unpack_task(row["task_content"]), turns, calls))
    except (zlib.error, ValueError, LookupError, TypeError) as error:
        raise DataError(
            f"episode {episode_id} cannot be read ({error}): the store is damaged; move it away and the next stage begins a new one"
        ) from error


def read_episodes(connection: sqlite3.Connection, episode_ids: Iterable[int]) -> Iterator[StoredEpisode]:
    """In the order of the ids, one in memory at a time; those that are not there any more are left out."""
    return (episode for episode_id in episode_ids if (episode := read_episode(connection, episode_id)) is not None)


def export_line(episode: StoredEpisode) -> str:
    """One JSON object: OpenAI's `messages`, the rest named as in `Trajectory` and `Task`. NaN and infinity, which JSON has not, are null."""
    run, traced = episode.run, episode.traced
    task, played = traced.task, traced.trajectory
    content = {
        "episode": episode.episode_id,
        "stage": run.stage,
        "run": run.uid,
        "run_key": run.key,
        "part": traced.part,
        "step": traced.step,
        "task_id": task.task_id,
        "kind": task.kind,
        "market": task.market,
        "language": task.language,
        "difficulty": task.difficulty,
        "split": task.split,
        "template": task.template,
        "companies": task.companies,
        "messages": [message.to_openai() for message in played.messages],
        "turns": [asdict(turn) for turn in played.turns],
        "token_ids": played.token_ids,
        "mask": played.mask,
        "logprobs": [_finite(logprob) for logprob in played.logprobs],
        "scores": {name: _finite(value) for name, value in played.scores.items()},
        "reward": _finite(played.reward),
        "advantage": _finite(traced.advantage),
        "is_success": traced.is_success,
        "num_forks": played.num_forks,
        "stop_reason": str(played.stop_reason),
        "failure": played.failure,
        "seed": played.seed,
        "policy_version": played.policy_version,
    }
    return storable(json.dumps(content, ensure_ascii=False, allow_nan=False))


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
