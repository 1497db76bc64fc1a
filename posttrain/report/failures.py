"""Chooses the failed episodes that the report shows; cuts and escapes their messages."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from posttrain.report.run_reader import HELD_OUT, TaskRecord
from posttrain.runtime.control_chars import escape_control_chars

MAX_MESSAGE_CHARS = 2000
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class FailureClass:
    """Episodes of a class before and after, on the same tasks. Of `before`, `repaired` succeed
    after; of `after`, `num_new` succeeded before."""

    name: str
    before: int
    after: int
    repaired: int
    num_new: int


def failure_classes(before: Sequence[TaskRecord], after: Sequence[TaskRecord]) -> list[FailureClass]:
    """One row per class that occurs before or after, the most frequent after first, then before;
    only tasks of the split `test` that both ran are counted."""
    then, now = _test_records(before), _test_records(after)
    both = [(then[task_id], now[task_id]) for task_id in then if task_id in now]
    names = sorted({record.failure for pair in both for record in pair if record.failure is not None})
    rows = [
        FailureClass(
            name=name,
            before=sum(old.failure == name for old, _ in both),
            after=sum(new.failure == name for _, new in both),
            repaired=sum(old.failure == name and new.success for old, new in both),
            num_new=sum(new.failure == name and old.success for old, new in both),
        )
        for name in names
    ]
    return sorted(rows, key=lambda row: (-row.after, -row.before))


def shown_failures(records: Sequence[TaskRecord], count: int) -> list[dict[str, Any]]:
    """At most `count` failed episodes, of every class as evenly as there are: one of each in turn,
    in the file's order; then grouped by class, the most frequent first.

    Each has `task_id`, `failure`, `cell`, `opening` (what the user asked first), `wanted`, `turns`,
    `stop_reason`, `reward` and `messages`, as `posttrain/report/page_parts.js` draws them."""
    by_class: dict[str, list[TaskRecord]] = {}
    for record in records:
        if record.failure is not None:
            by_class.setdefault(record.failure, []).append(record)
    order = sorted(by_class, key=lambda name: -len(by_class[name]))
    chosen = in_turn(*(by_class[name] for name in order))[:count]
    return [_shown(record) for record in sorted(chosen, key=lambda record: order.index(record.failure or ""))]


def in_turn(*lists: Sequence[Item]) -> list[Item]:
    """Items of all lists, one of each in turn."""
    longest = max(map(len, lists), default=0)
    return [items[index] for index in range(longest) for items in lists if index < len(items)]


def shortened(text: str, max_chars: int = MAX_MESSAGE_CHARS) -> str:
    """Cut a text at `max_chars`, and say how long it was; control characters are escaped."""
    return escape_control_chars(text if len(text) <= max_chars else f"{text[:max_chars]} … ({len(text):,} characters)")


def shown_message(message: Mapping[str, Any], max_chars: int = MAX_MESSAGE_CHARS) -> dict[str, Any]:
    """A message of a transcript as `posttrain/report/page_parts.js` draws it: `role`, and
    `reasoning`, `text` and `calls` where it has them. What is no text is shown as JSON."""

    def text(value: Any) -> str:
        return shortened(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), max_chars)

    parts = {
        "role": text(message.get("role", "")),
        "reasoning": text(message.get("reasoning", "")),
        "text": text(message.get("content", "")),
        "calls": [[text(name), text(arguments)] for name, arguments in message.get("calls", [])],
    }
    return {name: part for name, part in parts.items() if part}


def _test_records(records: Sequence[TaskRecord]) -> Mapping[str, TaskRecord]:
    return {record.task_id: record for record in records if record.split == HELD_OUT}


def _shown(record: TaskRecord) -> dict[str, Any]:
    opening = next((message.content for message in record.transcript if message.role == "user"), "")
    return {
        "task_id": shortened(record.task_id),
        "failure": shortened(record.failure or ""),
        "cell": shortened(record.cell),
        "opening": shortened(opening),
        "wanted": shortened(record.wanted),
        "turns": record.turns,
        "stop_reason": shortened(record.stop_reason),
        "reward": record.reward,
        "messages": [shown_message(message.model_dump()) for message in record.transcript],
    }
