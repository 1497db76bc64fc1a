"""Annotations of people, as `posttrain annotate` writes them: a row for each judgement, in the
shapes that `import_preferences` reads."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from posttrain.data.files import read_parquet, write_parquet
from posttrain.data.schemas import TrajectoryRow
from posttrain.types import Message

ANNOTATIONS = Path("data/feedback/annotations.parquet")
_TEXTS = (
    "item",
    "who",
    "when",
    "task_id",
    "tools",
    "comment",
    "winner",
    "conversation_a",
    "conversation_b",
    "messages",
    "corrections",
)
SCHEMA = pa.schema([*((name, pa.string()) for name in _TEXTS), ("rating", pa.int32())])


@dataclass(frozen=True, slots=True)
class Item:
    """One or two episodes of a task to judge. Two are A and B by their content, so that every
    annotator sees the same order, and none knows which was thought the better."""

    episodes: tuple[TrajectoryRow, ...]

    @property
    def item_id(self) -> str:
        """16 hex digits of the content."""
        return hashlib.sha256("".join(one.trajectory_id for one in self.episodes).encode()).hexdigest()[:16]


def item_of(*episodes: TrajectoryRow) -> Item:
    return Item(tuple(sorted(episodes, key=lambda one: hashlib.sha256(one.trajectory_id.encode()).digest())))


def annotation(
    item: Item,
    *,
    who: str,
    when: str,
    comment: str = "",
    winner: str | None = None,
    rating: int | None = None,
    marks: Mapping[int, float] | None = None,
    corrections: Mapping[int, Message] | None = None,
) -> dict[str, Any]:
    """A row: of two episodes the `winner` (a, b or tie), of one the `rating` from 1 to 5,
    `marks` from 0 to 1 by the place of a message, and `corrections`, what the agent should have
    written there."""
    talks = [_messages(one, marks or {}) for one in item.episodes]
    names = ("conversation_a", "conversation_b") if len(talks) == 2 else ("messages",)
    first = item.episodes[0]
    return {
        "item": item.item_id,
        "who": who,
        "when": when,
        "task_id": first.trajectory.task_id,
        "tools": json.dumps(list(first.tools)),
        "comment": comment or None,
        "winner": winner,
        "rating": rating,
        "corrections": json.dumps({place: one.to_openai() for place, one in corrections.items()})
        if corrections
        else None,
        **dict(zip(names, talks, strict=True)),
    }


def read_annotations(path: Path = ANNOTATIONS) -> list[dict[str, Any]]:
    """None where there is no file yet. Raises DataError."""
    rows: list[dict[str, Any]] = read_parquet(path, SCHEMA).to_pylist() if path.exists() else []
    return rows


def corrections_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[str, int, Message]]]:
    """By item who corrected the message at which place, and how."""
    found: dict[str, list[tuple[str, int, Message]]] = {}
    for row in rows:
        for place, told in json.loads(row["corrections"] or "{}").items():
            found.setdefault(row["item"], []).append((row["who"], int(place), Message.from_openai(told)))
    return found


def write_annotations(rows: Sequence[Mapping[str, Any]], path: Path = ANNOTATIONS) -> None:
    """Replace the file: whole, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_parquet(path, pa.Table.from_pylist([dict(one) for one in rows], schema=SCHEMA))


def _messages(row: TrajectoryRow, marks: Mapping[int, float]) -> str:
    told = [message.to_openai() for message in row.trajectory.messages]
    return json.dumps([one | ({"label": marks[place]} if place in marks else {}) for place, one in enumerate(told)])
