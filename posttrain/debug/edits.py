"""Verified edits: an agent's message in another wording counts where the policy itself then does
better, and is kept as training data.

The policy plays on n times from the turn as it was recorded, and n times behind the edited message.
An edit is kept only where the mean of strict success is higher; the interval of the difference is
kept with it.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from posttrain.data.files import read_parquet, write_batches
from posttrain.data.schemas import (
    TASKS_SCHEMA,
    TRAJECTORY_COLUMNS,
    TrajectoryRow,
    message_columns,
    messages_from_columns,
    task_columns,
    task_from_columns,
    trajectory_columns,
    trajectory_from_columns,
    trajectory_row,
)
from posttrain.debug.player import Player
from posttrain.evals.significance import difference_of_shares
from posttrain.rollout.play_on import Branch, Fork
from posttrain.runtime.exits import ConfigurationError, DataError
from posttrain.types import Message, Task, Trajectory
from posttrain.worlds.tools import Tool

EDITS = Path("data/edits/edits.parquet")
_TEXT, _MESSAGES = pa.string(), TASKS_SCHEMA.field("messages").type
_EPISODE = pa.struct(TRAJECTORY_COLUMNS)
SCHEMA = pa.schema(
    [
        *(("edit_id", _TEXT), ("task", pa.struct(list(TASKS_SCHEMA))), ("recorded", _EPISODE), ("turn", pa.int32())),
        *(("edited", _MESSAGES), ("who", _TEXT), ("before", pa.list_(pa.bool_())), ("after", pa.list_(pa.bool_()))),
        *(("played_on", _EPISODE), ("model", _TEXT), ("code", _TEXT)),
    ]
)
FORBIDDEN_SPLITS = ("test", "test_paraphrase")


@dataclass(frozen=True, slots=True)
class VerifiedEdit:
    """An edit with what was played from it. `before` and `after` are strict successes of the plays
    on from turn `turn` (from 1), without and with the edited message; `played_on` is a branch with
    it that succeeded, the first one. `model` and `code` say whose plays they are."""

    task: Task
    recorded: Trajectory
    turn: int
    edited: Message
    who: str
    before: tuple[bool, ...]
    after: tuple[bool, ...]
    played_on: Trajectory
    model: str = ""
    code: str = ""

    @property
    def edit_id(self) -> str:
        """12 hex digits of the episode, the turn and the edited message."""
        content = [self.task.task_id, self.recorded.seed, self.turn, message_columns([self.edited])]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]

    @property
    def difference(self) -> tuple[float, float, float]:
        """Mean of `after` less that of `before`, with its 95 % interval."""
        return difference_of_shares(self.before, self.after)

    def pair(self, tools: Mapping[str, Tool]) -> tuple[TrajectoryRow, TrajectoryRow]:
        """Chosen and rejected, for DPO and KTO: the branch that succeeded, the recorded episode."""
        chosen, rejected = (trajectory_row(one, self.task, tools) for one in (self.played_on, self.recorded))
        return chosen, rejected

    def sft_row(self, tools: Mapping[str, Tool]) -> TrajectoryRow:
        """A demonstration that is trained from the edited turn on."""
        behind = replace(self.played_on, turns=self.played_on.turns[self.turn - 1 :])
        return trajectory_row(behind, self.task, tools)


def verify(
    forks: Sequence[Fork], player: Player, *, who: str, num: int = 8, seed: int = 0, code: str = ""
) -> list[VerifiedEdit | tuple[bool, ...]]:
    """Verify the edit of each fork, all plays at once; of one that does not help, only the outcomes
    behind it. Raises ConfigurationError for a fork without an edited message, and of a task that is
    held out: its edits would be training on the test."""
    for fork in forks:
        if fork.message is None or fork.results:
            raise ConfigurationError("an edit that is verified is of the agent's own message, and of nothing else")
        if fork.task.split in FORBIDDEN_SPLITS:
            raise ConfigurationError(
                f"task {fork.task.task_id} is of the split {fork.task.split}, which nothing may be trained on"
            )
    plays = [
        replace(fork, message=message, num=num, seed=2 * seed + (message is not None))
        for fork in forks
        for message in (None, fork.message)
    ]
    branches = player.branches(plays)
    groups = [branches[start : start + num] for start in range(0, len(branches), num)]
    return [
        _verified(fork, before, after, who=who, model=player.name, code=code)
        for fork, before, after in zip(forks, groups[::2], groups[1::2], strict=True)
    ]


def _verified(
    fork: Fork, before: Sequence[Branch], after: Sequence[Branch], *, who: str, model: str, code: str
) -> VerifiedEdit | tuple[bool, ...]:
    """An aborted play says nothing of the agent and is left out."""
    assert fork.message is not None
    found = [tuple(one.is_strict_success for one in side if not one.trajectory.is_aborted) for side in (before, after)]
    if not all(found) or sum(found[1]) / len(found[1]) <= sum(found[0]) / len(found[0]):
        return found[1]
    played_on = next(one.trajectory for one in after if one.is_strict_success)
    return VerifiedEdit(
        fork.task, fork.trajectory, fork.at, fork.message, who, found[0], found[1], played_on, model, code
    )


def read_edits(path: Path = EDITS) -> list[VerifiedEdit]:
    """None where there is no file yet. Raises DataError where it is damaged."""
    if not path.exists():
        return []
    try:
        return [_edit_from_columns(columns) for columns in read_parquet(path, SCHEMA).to_pylist()]
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path} holds no verified edits ({error}): take it back by `dvc checkout`") from error


def add_edits(edits: Sequence[VerifiedEdit], path: Path = EDITS) -> int:
    """Add edits to the file, one of an id; returns how many are new."""
    known = {one.edit_id: one for one in read_edits(path)}
    num_known = len(known)
    known |= {one.edit_id: one for one in edits}
    write_edits(list(known.values()), path)
    return len(known) - num_known


def write_edits(edits: Sequence[VerifiedEdit], path: Path = EDITS) -> None:
    """Replace the file: whole, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tables = [pa.Table.from_pylist([_edit_columns(one) for one in edits], schema=SCHEMA)]
    partial = path.with_name(f".{path.name}.partial")
    write_batches(partial, tables, SCHEMA)
    partial.replace(path)


def _edit_columns(edit: VerifiedEdit) -> dict[str, Any]:
    return {
        "edit_id": edit.edit_id,
        "task": task_columns(edit.task),
        "recorded": trajectory_columns(edit.recorded),
        "turn": edit.turn,
        "edited": message_columns([edit.edited]),
        "who": edit.who,
        "before": list(edit.before),
        "after": list(edit.after),
        "played_on": trajectory_columns(edit.played_on),
        "model": edit.model,
        "code": edit.code,
    }


def _edit_from_columns(columns: Mapping[str, Any]) -> VerifiedEdit:
    [edited] = messages_from_columns(columns["edited"])
    return VerifiedEdit(
        task_from_columns(columns["task"]),
        trajectory_from_columns(columns["recorded"]),
        columns["turn"],
        edited,
        columns["who"],
        tuple(columns["before"]),
        tuple(columns["after"]),
        trajectory_from_columns(columns["played_on"]),
        columns["model"],
        columns["code"],
    )
