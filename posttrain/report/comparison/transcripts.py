"""Finds the tasks that one setting wins and the baseline loses, or the other way round, with both
transcripts."""

import json
from collections.abc import Sequence
from typing import Any

from posttrain.report.comparison.settings import Setting
from posttrain.report.failures import in_turn, shown_message
from posttrain.report.run_reader import TaskResult
from posttrain.runtime.control_chars import escape_control_chars

MAX_PAGE_CHARS = 900_000  # of all conversations together
MAX_MESSAGE_CHARS = 1200

Message = dict[str, Any]


def task_pairs(settings: Sequence[Setting]) -> list[dict[str, Any]]:
    """For each setting but the baseline, the first: `won` and `lost`, how many tasks are, and
    `pairs`, as many as find room, won and lost in turn.

    A task is won where more of the setting's runs succeed than of the baseline's, by the share of
    runs, strictly where the settings are compared so. A pair has `task_id`, `cell`, `is_won`, both
    shares, and the messages of a run of each on either side of the difference; `diverges_at` is the
    first message that is not the same."""
    baseline, *others = settings
    room = MAX_PAGE_CHARS // max(len(others), 1)
    return [_pairs(baseline, other, room) for other in others]


def _pairs(baseline: Setting, other: Setting, room: int) -> dict[str, Any]:
    before, after = _shares(baseline), _shares(other)
    differences = {task: after[task] - before[task] for task in sorted(before.keys() & after.keys())}
    won = sorted((task for task in differences if differences[task] > 0), key=lambda task: -differences[task])
    lost = sorted((task for task in differences if differences[task] < 0), key=lambda task: differences[task])
    pairs: list[dict[str, Any]] = []
    for task in in_turn(lost, won):
        pair = _pair(baseline, other, task, before[task], after[task])
        room -= len(json.dumps(pair))
        if room < 0:
            break
        pairs.append(pair)
    return {"won": len(won), "lost": len(lost), "pairs": pairs}


def _pair(baseline: Setting, other: Setting, task: str, before: float, after: float) -> dict[str, Any]:
    is_won = after > before
    first, second = _result(baseline, task, not is_won), _result(other, task, is_won)
    left, right = _messages(first), _messages(second)
    same = next(
        (index for index, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right))
    )
    return {
        "task_id": escape_control_chars(task),
        "cell": escape_control_chars(first.cell),
        "is_won": is_won,
        "before": round(before, 3),
        "after": round(after, 3),
        "failure": escape_control_chars(_failure(first if is_won else second)),
        "left": left,
        "right": right,
        "diverges_at": same,
    }


def _failure(result: TaskResult) -> str:
    return result.failure or ("success, but not strict" if result.strict_success == 0 and result.success == 1 else "")


def _shares(setting: Setting) -> dict[str, float]:
    """Share of the runs that succeeded, by task."""
    outcomes: dict[str, list[float]] = {}
    for run in setting.counted:
        for task, outcome in run.outcomes(setting.measure).items():
            outcomes.setdefault(task, []).append(outcome)
    return {task: sum(own) / len(own) for task, own in outcomes.items()}


def _result(setting: Setting, task: str, is_success: bool) -> TaskResult:
    """A result that ended so; another where none did."""
    runs = [run for run in setting.counted if task in run.tasks]
    ended = [(run.tasks[task].outcome(setting.measure) or 0.0) > 0.5 for run in runs]
    return runs[ended.index(is_success) if is_success in ended else 0].tasks[task]


def _messages(result: TaskResult) -> list[Message]:
    """Each with `role`, and `text`, `reasoning` and `calls` where it has them; none where the line
    holds no conversation."""
    try:
        transcript = json.loads(result.text)["transcript"]
        return [shown_message(message, MAX_MESSAGE_CHARS) for message in transcript]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return []
