"""Estimates how much a group-relative method would learn from rollouts that already have rewards:
trajectories, dumps of verl and TRL, and any other file whose columns of the task and the reward are
named.

A rollout that infrastructure ended says nothing about the agent, whatever reward stands beside it,
nor does one without a score (null, NaN): neither is a failure. This file alone decides which those
are.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from posttrain.data.importing.importer import NUM_PROBED, import_trajectories, refuse_too_many_bad, unread_keys
from posttrain.data.importing.records import BadRecord, read_records
from posttrain.evals.groups import Group, group_metrics, pass_hat_k
from posttrain.runtime.exits import DataError
from posttrain.runtime.limits import reason
from posttrain.types import ABORTED, MAX_NUMBER, Trajectory

# other tools' words for an end by infrastructure: tau2; rLLM; vLLM's requests
_ABORTED_WORDS = {*ABORTED, "infrastructure_error", "error", "abort"}
# Inspect's values that are no numbers, converted as its own metrics do
INSPECT_VALUES = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0, "yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}
# By the keys that identify a tool's records: the keys of the group and of the reward (dotted within
# objects). TRL has a column for each reward function, by its name.
_DUMPS: Mapping[tuple[str, ...], tuple[tuple[str, ...], str]] = {
    ("input", "output", "score", "step"): (("step", "input"), "score"),  # verl
    ("prompt", "completion", "advantage"): (("step", "prompt"), ""),  # TRL
}


@dataclass(frozen=True, slots=True)
class Rollout:
    """A task and its reward. Rollouts of one `task` are a group. `reward` is None where nobody
    scored it; `is_aborted` where infrastructure ended it."""

    task: str
    reward: float | None
    is_aborted: bool = False

    @classmethod
    def of(cls, episode: Trajectory) -> "Rollout":
        return cls(episode.task_id, episode.reward, episode.is_aborted)


@dataclass(frozen=True, slots=True)
class RolloutFile:
    """The content of a file: its rollouts, the records that are none, and a sentence on the keys
    that were not read (empty where all were)."""

    rollouts: list[Rollout]
    bad: list[BadRecord]
    unread: str = ""


def group_health(rollouts: Sequence[Rollout], *, success_at: float, source: str) -> dict[str, float]:
    """`group_metrics` of the groups (episodes of one task), with their counts, `success_rate`, and
    `pass_hat_k` up to the smallest group's size.

    An episode with a reward of `success_at` or more succeeded. An episode that infrastructure ended
    (`num_lost`) or nobody scored (`num_unscored`) is left out; so is a task with one episode, which
    has no spread (`num_single`). Raises DataError, naming `source`, where no task has two.
    """
    num_aborted = sum(rollout.is_aborted for rollout in rollouts)
    rewards: dict[str, list[float]] = {}
    for rollout in rollouts:
        if rollout.reward is not None and not rollout.is_aborted:
            rewards.setdefault(rollout.task, []).append(rollout.reward)
    num_rollouts = sum(map(len, rewards.values()))
    groups = [Group(own, [reward >= success_at for reward in own]) for own in rewards.values() if len(own) > 1]
    if not groups:
        raise DataError(
            f"{source}: no task has two episodes among {num_rollouts} rollouts, so there is no group to compare "
            "within; give the rollouts of one task one task_id, or name the column of the task with --group"
        )
    smallest = min(len(group.rewards) for group in groups)
    successes = [group.successes for group in groups]
    num_episodes = sum(len(own) for own in successes)
    return {
        "num_trajectories": num_rollouts,
        "num_lost": num_aborted,
        "num_unscored": len(rollouts) - num_rollouts - num_aborted,
        "num_groups": len(groups),
        "num_single": len(rewards) - len(groups),
        "smallest_group": smallest,
        "largest_group": max(len(group.rewards) for group in groups),
        "num_successes": sum(sum(own) for own in successes),
        "success_rate": sum(sum(own) for own in successes) / num_episodes,
        **group_metrics(groups),
        **{f"pass_hat_{k}": pass_hat_k(successes, k) for k in range(1, min(smallest, 8) + 1)},
    }


def read_rollouts(path: Path, file_format: str | None = None, *, reward: str = "", group: str = "") -> RolloutFile:
    """Read a file. `reward` and `group` name its columns where they are others than the format's; a
    group may also be a number, of records in a row. Raises DataError where nothing tells which
    rollouts are of one task, or what a reward is."""
    heads: list[Any] = [record for _, record in islice(read_records(path), NUM_PROBED) if isinstance(record, dict)]
    records: Iterable[tuple[int, Any]] = read_records(path)
    dump = None if file_format else next((keys for keys in _DUMPS if any(_has(one, keys) for one in heads)), None)
    keys = reason(", ".join(heads[0])) if heads and isinstance(heads[0], Mapping) else "no objects"
    if dump or group:
        found = _from_dump(path, records, dump, reward=reward, group=group, head=heads[0] if heads else None)
    else:
        try:
            found = _from_trajectories(path, records, file_format, reward=reward)
        except DataError as error:
            raise DataError(f"{error}. Of any file, --group and --reward name the columns: it has {keys}") from error
    if any(rollout.reward is not None for rollout in found.rollouts):
        return found
    raise DataError(
        f"{path}: none of {len(found.rollouts)} rollouts has a reward{f' {reward}' if reward else ''}, so their groups "
        f"have no spread; score them first, or name the column with --reward: it has {keys}"
    )


def _from_dump(
    path: Path,
    records: Iterable[tuple[int, Any]],
    dump: tuple[str, ...] | None,
    *,
    reward: str,
    group: str,
    head: Any,
) -> RolloutFile:
    """Rollouts by columns: those of a known tool's dump, or those that a person named."""
    columns, column = _DUMPS[dump] if dump else ((), "reward")
    columns = (group,) if group else columns
    if not columns:
        raise DataError(f"{path} does not say which rollouts are of one task: give --group COLUMN, or --group HOW_MANY")
    reward = reward or column or _only_reward(path, head)
    found = [_rollout(path, number, record, columns, reward) for number, record in records]
    return RolloutFile(
        [one for one in found if isinstance(one, Rollout)], [one for one in found if isinstance(one, BadRecord)]
    )


def _from_trajectories(
    path: Path, records: Iterable[tuple[int, Any]], file_format: str | None, *, reward: str
) -> RolloutFile:
    """Rollouts by the import of trajectories."""
    imported = import_trajectories(path, file_format)
    refuse_too_many_bad(imported, max_quarantine_frac=1.0, source=path)
    rollouts = [Rollout.of(row.trajectory) for row in imported.rows]
    if reward:
        rewards = {number: _reward(path, record, reward) for number, record in records}
        rollouts = [replace(one, reward=rewards[at]) for at, one in zip(imported.record_numbers, rollouts, strict=True)]
    return RolloutFile(rollouts, imported.bad, unread_keys(imported.unread))


def is_unscored(value: Any) -> bool:
    """True for a score that says that there is none: null, and Inspect's NaN."""
    return value is None or value != value


def _rollout(path: Path, number: int, record: Any, columns: Sequence[str], reward: str) -> Rollout | BadRecord:
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
    is_aborted = bool(record.get("error") or record.get("invalidation") or _ABORTED_WORDS.intersection(ends))
    return Rollout(hashlib.sha256(text.encode()).hexdigest(), _reward(path, record, reward), is_aborted)


def _only_reward(path: Path, record: Mapping[str, Any]) -> str:
    """The column of TRL's reward function. Raises DataError where there are several or none."""
    others = ("step", "advantage", "prompt", "completion")
    found = [name for name, value in record.items() if name not in others and isinstance(value, int | float)]
    if len(found) != 1:
        raise DataError(f"{path} has the rewards {reason(', '.join(found))}: name one with --reward")
    return found[0]


def _reward(path: Path, record: Any, column: str) -> float | None:
    """The reward in a column, None where it is no score. A list (rewards of tokens or turns) is
    summed up; an object is a score with its explanation, or holds one by its name. Raises DataError
    where it holds several."""
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
    """The value at a dotted path, None where there is none."""
    if isinstance(record, Mapping) and path in record:
        return record[path]
    head, dot, rest = path.partition(".")
    return _at(record.get(head), rest) if dot and isinstance(record, Mapping) else None
