"""Which failures are shown, each as a conversation whose messages are cut at a length. The template
makes their text harmless to read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from posttrain.report.sources import TaskRecord

MAX_MESSAGE_CHARS = 2000
_ROLES = {"user": "user", "assistant": "agent", "tool": "tool result"}


@dataclass(frozen=True, slots=True)
class Part:
    """One bubble of a conversation: `kind` is user, agent, reasoning, call or tool result; `name`
    the tool of a call, empty elsewhere."""

    kind: str
    text: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class ShownFailure:
    """A failed episode for a reader."""

    task_id: str
    failure: str
    cell: str
    opening: str
    turns: int
    stop_reason: str
    reward: float
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class FailureClass:
    """Episodes of a class before and after, on the same tasks. Of `before`, `repaired` succeed
    after; of `after`, `num_new` succeeded before."""

    name: str
    before: int
    after: int
    repaired: int
    num_new: int


def failure_classes(
    before: Sequence[TaskRecord], after: Sequence[TaskRecord], classes: Sequence[str]
) -> list[FailureClass]:
    """One row per class that occurs, in the order of `classes`; only tasks of the split `test` that
    both played are counted."""
    then, now = _test_records(before), _test_records(after)
    both = [(then[task_id], now[task_id]) for task_id in then if task_id in now]
    rows = [
        FailureClass(
            name=name,
            before=sum(old.failure == name for old, _ in both),
            after=sum(new.failure == name for _, new in both),
            repaired=sum(old.failure == name and new.success for old, new in both),
            num_new=sum(new.failure == name and old.success for old, new in both),
        )
        for name in classes
    ]
    return [row for row in rows if row.before or row.after]


def shown_failures(records: Sequence[TaskRecord], count: int) -> list[ShownFailure]:
    """At most `count` failed episodes, of every class as evenly as there are: one of each in turn,
    in the file's order; then grouped by class."""
    by_class: dict[str, list[TaskRecord]] = {}
    for record in records:
        if record.failure is not None:
            by_class.setdefault(record.failure, []).append(record)
    longest = max(map(len, by_class.values()), default=0)
    in_turn = [members[index] for index in range(longest) for members in by_class.values() if index < len(members)]
    order = list(by_class)
    return [_shown(record) for record in sorted(in_turn[:count], key=lambda record: order.index(record.failure or ""))]


def shortened(text: str) -> str:
    """Cut at MAX_MESSAGE_CHARS, and then with how long it was."""
    return text if len(text) <= MAX_MESSAGE_CHARS else f"{text[:MAX_MESSAGE_CHARS]} … ({len(text):,} characters)"


def _test_records(records: Sequence[TaskRecord]) -> Mapping[str, TaskRecord]:
    return {record.task_id: record for record in records if record.split == "test"}


def _shown(record: TaskRecord) -> ShownFailure:
    opening = next((message.content for message in record.transcript if message.role == "user"), "")
    parts: list[Part] = []
    for message in record.transcript:
        if message.reasoning:
            parts.append(Part("reasoning", shortened(message.reasoning)))
        if message.content:
            parts.append(Part(_ROLES.get(message.role, "other"), shortened(message.content)))
        parts += [Part("call", shortened(arguments), shortened(name)) for name, arguments in message.calls]
    return ShownFailure(
        task_id=shortened(record.task_id),
        failure=shortened(record.failure or ""),
        cell=shortened(record.cell.replace("/", " · ").replace("_", " ")),
        opening=shortened(opening),
        turns=record.turns,
        stop_reason=shortened(record.stop_reason),
        reward=record.reward,
        parts=tuple(parts),
    )
