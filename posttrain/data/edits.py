"""Verified edits of agents' messages, and the file that keeps them as training data.

An edit is verified where the policy itself, played on behind it, does better than from the same
turn without it (`posttrain/debug/verify.py`).
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from posttrain.data.files import read_parquet, write_parquet
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
from posttrain.runtime.exits import DataError
from posttrain.types import Message, Task, Trajectory
from posttrain.worlds.tools import Tool

EDITS, SELECTED = Path("data/edits/edits.parquet"), Path("data/selected_edits")
FOR_SFT, FOR_PAIRS, FOR_GROUPS = (SELECTED / f"{use}.parquet" for use in ("sft", "pairs", "groups"))
_TEXT, _MESSAGES = pa.string(), TASKS_SCHEMA.field("messages").type
_EPISODE = pa.struct(TRAJECTORY_COLUMNS)
SCHEMA = pa.schema(
    [
        *(("edit_id", _TEXT), ("task", pa.struct(list(TASKS_SCHEMA))), ("recorded", _EPISODE), ("turn", pa.int32())),
        *(("edited", _MESSAGES), ("who", _TEXT), ("before", pa.list_(pa.bool_())), ("after", pa.list_(pa.bool_()))),
        *(("played_on", _EPISODE), ("model", _TEXT), ("code", _TEXT)),
    ]
)


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

    def pair(self) -> tuple[Trajectory, Trajectory]:
        """Chosen and rejected, for DPO and KTO: the branch that succeeded, the recorded episode.
        Both are without token ids: the model that learns from them may have another tokenizer, and
        nobody sampled the edited message."""
        return _without_tokens(self.played_on), _without_tokens(self.recorded)

    def sft_row(self, tools: Mapping[str, Tool]) -> TrajectoryRow:
        """A demonstration that is trained from the edited turn on."""
        behind = replace(self.played_on, turns=self.played_on.turns[self.turn - 1 :])
        return trajectory_row(behind, self.task, tools)


def idle_deps(knobs: Mapping[str, Any]) -> frozenset[str]:
    """Deps of the stage `select_edits` that it does not read where no knob asks for edits, by
    `train_sft.edit_copies` and `sample_preferences.edit_pairs`."""
    is_asked = knobs["train_sft.edit_copies"] > 0 or knobs["sample_preferences.edit_pairs"]
    return frozenset() if is_asked else frozenset([str(EDITS.parent)])


def read_edits(path: Path = EDITS) -> list[VerifiedEdit]:
    """None where there is no file yet. Raises DataError where it is damaged."""
    if not path.exists():
        return []
    try:
        return [_edit_from_columns(columns) for columns in read_parquet(path, SCHEMA).to_pylist()]
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path} holds no verified edits ({error}): take it back from git, or remove it") from error


def add_edits(edits: Sequence[VerifiedEdit], path: Path = EDITS) -> int:
    """Add edits to the file, one of an id; returns how many are new."""
    known = {one.edit_id: one for one in read_edits(path)}
    num_known = len(known)
    known |= {one.edit_id: one for one in edits}
    write_edits(list(known.values()), path)
    return len(known) - num_known


def write_edits(edits: Sequence[VerifiedEdit], path: Path = EDITS) -> None:
    """Replace the file: whole, or not at all."""
    write_parquet(path, pa.Table.from_pylist([_edit_columns(one) for one in edits], schema=SCHEMA))


def _without_tokens(trajectory: Trajectory) -> Trajectory:
    turns = tuple(replace(turn, num_read=0, num_written=0) for turn in trajectory.turns)
    return replace(trajectory, turns=turns, token_ids=(), mask=(), logprobs=())


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
