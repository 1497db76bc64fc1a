"""Reads the plays in a file, each with its task and its reward, from trajectories and from what
other trainers and evaluations write of their rollouts.

A play that infrastructure ended says nothing about the agent, whatever reward stands beside it, nor
does one without a score (null, NaN): neither is a failure. Which those are is decided here alone.
"""

import hashlib
import json
import math
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from posttrain.data.importing.importer import NUM_PROBED, import_trajectories, refuse_too_many_bad, unread_keys
from posttrain.data.importing.records import BadRecord, read_records
from posttrain.runtime.exits import DataError
from posttrain.runtime.limits import reason
from posttrain.types import LOST, MAX_NUMBER, Trajectory

# what other tools call the end of an episode that infrastructure made: tau2; rLLM; vLLM's requests
_LOST_WORDS = {*LOST, "infrastructure_error", "error", "abort"}
# as Inspect's own metrics take the values that are no numbers
INSPECT_VALUES = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0, "yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}
# The tools by the keys that all records of theirs have, with those of the group and of the reward
# (dotted, within objects). TRL has a column for each reward function, by its name; NeMo-RL says
# nowhere which records play one task.
_DUMPS: Mapping[tuple[str, ...], tuple[tuple[str, ...], str]] = {
    ("input", "output", "score", "step"): (("step", "input"), "score"),  # verl
    ("example_id", "completion", "reward"): (("task", "example_id"), "reward"),  # verifiers, prime-rl
    ("prompt", "completion", "advantage"): (("step", "prompt"), ""),  # TRL
    ("input", "output", "reward"): (("input",), "reward"),  # OpenRLHF
    ("content", "rewards"): ((), "rewards"),  # NeMo-RL
    ("input_prompt", "output_response", "score"): (("input_prompt",), "score"),  # SkyRL
    ("trajectories", "is_correct"): (("task",), "is_correct"),  # rLLM
    ("sample_score",): (("sample_score.group_id",), "sample_score.score.value"),  # evalscope
    ("id", "epoch", "target"): (("id",), "scores"),  # Inspect
}


@dataclass(frozen=True, slots=True)
class Play:
    """Plays of one `task` are a group. `reward` is None where the play has none; `is_lost` where
    infrastructure ended it."""

    task: str
    reward: float | None
    is_lost: bool = False

    @classmethod
    def of(cls, episode: Trajectory) -> "Play":
        return cls(episode.task_id, episode.reward, episode.is_lost)


def read_plays(
    path: Path, file_format: str | None = None, *, reward: str = "", group: str = ""
) -> tuple[list[Play], list[BadRecord], str]:
    """The plays of a file, its records that are none, and a sentence on the keys that were not read
    (empty where all were). `reward` and `group` name the columns
    where they are others than the format's; a group may also be a number, of records in a row.
    Raises DataError where nothing tells what a task or a reward is."""
    if zipfile.is_zipfile(path):
        raise DataError(f"{path} is an archive of Inspect's: `inspect log convert --to json --output-dir DIR {path}`")
    heads: list[Any] = [record for _, record in islice(read_records(path), NUM_PROBED) if isinstance(record, dict)]
    records: Iterable[tuple[int, Any]] = read_records(path)
    if heads and "eval" in heads[0] and isinstance(heads[0].get("samples"), list):  # a log of Inspect
        heads = heads[0]["samples"]
        records = enumerate(heads, 1)
    unread = ""
    dump = None if file_format else next((keys for keys in _DUMPS if any(_has(one, keys) for one in heads)), None)
    keys = reason(", ".join(heads[0])) if heads and isinstance(heads[0], Mapping) else "no objects"
    if dump or group:
        columns, column = _DUMPS[dump] if dump else ((), "reward")
        columns = (group,) if group else columns
        if not columns:
            raise DataError(
                f"{path} does not say which plays are of one task: give --group COLUMN, or --group HOW_MANY"
            )
        reward = reward or column or _only_reward(path, heads[0])
        found = [_play(path, number, record, columns, reward) for number, record in records]
        plays, bad = (
            [one for one in found if isinstance(one, Play)],
            [one for one in found if isinstance(one, BadRecord)],
        )
    else:
        try:
            imported = import_trajectories(path, file_format)
            refuse_too_many_bad(imported, max_quarantine_frac=1.0, source=path)
        except DataError as error:
            raise DataError(f"{error}. Of any file, --group and --reward name the columns: it has {keys}") from error
        plays, bad = [Play.of(row.trajectory) for row in imported.rows], imported.bad
        unread = unread_keys(imported)
        if reward:
            rewards = {number: _reward(path, record, reward) for number, record in records}
            plays = [replace(play, reward=rewards[at]) for at, play in zip(imported.record_numbers, plays, strict=True)]
    if any(play.reward is not None for play in plays):
        return plays, bad, unread
    raise DataError(
        f"{path}: none of {len(plays)} plays has a reward{f' {reward}' if reward else ''}, so their groups have no "
        f"spread; score them first, or name the column with --reward: it has {keys}"
    )


def is_unscored(value: Any) -> bool:
    """Whether a score says that there is none: null, and Inspect's NaN."""
    return value is None or value != value


def _play(path: Path, number: int, record: Any, columns: Sequence[str], reward: str) -> Play | BadRecord:
    if not isinstance(record, Mapping):
        return record if isinstance(record, BadRecord) else BadRecord.of(number, "it is no object", record)
    task = [(number - 1) // max(1, int(one)) if one.isdecimal() else _at(record, one) for one in columns]
    if task[-1] is None:
        return BadRecord.of(number, f"it has no {columns[-1]}", record)
    try:
        text = json.dumps(task, sort_keys=True)
    except RecursionError:
        return BadRecord.of(number, "brackets nested too deep", record)
    ends = [str(record.get(key)).lower() for key in ("termination_reason", "stop_reason")]
    is_lost = bool(record.get("error") or record.get("invalidation") or _LOST_WORDS.intersection(ends))
    return Play(hashlib.sha256(text.encode()).hexdigest(), _reward(path, record, reward), is_lost)


def _only_reward(path: Path, record: Mapping[str, Any]) -> str:
    """The one reward function of TRL's."""
    others = ("step", "advantage", "prompt", "completion")
    found = [name for name, value in record.items() if name not in others and isinstance(value, int | float)]
    if len(found) != 1:
        raise DataError(f"{path} has the rewards {reason(', '.join(found))}: name one with --reward")
    return found[0]


def _reward(path: Path, record: Any, column: str) -> float | None:
    """None for what is no score. A list is of rewards of tokens or turns; an object is a score with
    its explanation, or holds one by its name. Raises DataError where it holds several."""
    value = _at(record, column)
    while isinstance(value, Mapping):
        inner = [value["value"]] if "value" in value else list(value.values())
        if len(inner) != 1:
            names = reason(", ".join(f"{column}.{name}" for name in value))
            raise DataError(f"{path} has the rewards {names}: name one with --reward")
        value = inner[0]
    if isinstance(value, list):
        value = math.fsum(one for one in value if isinstance(one, int | float)) if value else None
    if isinstance(value, str):
        value = INSPECT_VALUES.get(value, INSPECT_VALUES.get(value.lower()))
    return float(value) if isinstance(value, int | float) and abs(value) <= MAX_NUMBER else None


def _has(record: Any, keys: Iterable[str]) -> bool:
    return all(_at(record, key) is not None for key in keys)


def _at(record: Any, path: str) -> Any:
    """None where there is no such place."""
    if isinstance(record, Mapping) and path in record:
        return record[path]
    head, dot, rest = path.partition(".")
    return _at(record.get(head), rest) if dot and isinstance(record, Mapping) else None
