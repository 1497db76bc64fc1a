"""Measures a judge before its word becomes a reward: its agreement with people and with the world's
own verdict, by Cohen's kappa beside exact agreement, and its biases."""

from collections.abc import Mapping, Sequence
from typing import Any

from posttrain.data.preferences import Pair
from posttrain.data.schemas import TrajectoryRow
from posttrain.evals.agreement import cohens_kappa, exact_agreement
from posttrain.report.table import percent
from posttrain.rollout.judge import Judge
from posttrain.types import Trajectory

_TURNED = {"A": "B", "B": "A"}
GOOD_MARK = 0.625  # between 3 and 4 of 5


def check_judge(judge: Judge, rows: Sequence[TrajectoryRow], pairs: Sequence[Pair]) -> dict[str, Any]:
    """Marks of the episodes in `rows`, against the world's verdict on them; preferences between the
    sides of `pairs`, in both orders and once more, against what the pairs say. Shares are None
    where there is nothing to take them of.

    `position_bias`: share of decided comparisons that the first shown won, less a half.
    `length_bias`: share that the longer won, less that of the pairs in which it is the better.
    """
    marks = judge.mark([row.trajectory for row in rows])
    verdicts = [
        (mark["task"] > GOOD_MARK, row.trajectory.is_success)
        for mark, row in zip(marks, rows, strict=True)
        if mark is not None and "task" in mark
    ]
    shown = [_in_order(pair, place) for place, pair in enumerate(pairs)]
    there, again = judge.prefer(shown), judge.prefer(shown, sample=1)
    back = judge.prefer([(second, first) for first, second in shown])
    better = ["A" if first == pair.chosen.trajectory else "B" for (first, _), pair in zip(shown, pairs, strict=True)]
    turned = [_TURNED.get(one, one) if one else None for one in back]
    decided = [one for one in (*there, *back) if one in _TURNED]
    longer = [
        None if _length(first) == _length(second) else "AB"[_length(first) < _length(second)] for first, second in shown
    ]
    told = [both for both in zip(longer, there, better, strict=True) if both[0] and both[1] in _TURNED]
    return {
        "num_marked": len(verdicts),
        "verdict_agreement": exact_agreement(verdicts),
        "verdict_kappa": cohens_kappa(verdicts),
        "num_compared": len(_both(there, better)),
        "pair_agreement": exact_agreement(_both(there, better)),
        "pair_kappa": cohens_kappa(_both(there, better)),
        "swap_consistency": exact_agreement(_both(there, turned)),
        "retest": exact_agreement(_both(there, again)),
        "position_bias": decided.count("A") / len(decided) - 0.5 if decided else None,
        "length_bias": sum((said == one) - (right == one) for one, said, right in told) / len(told) if told else None,
        "num_no_sense": sum(one is None for one in (*marks, *there, *back, *again)),
        "cost": judge.account.cost,
    }


def judge_text(found: Mapping[str, Any]) -> str:
    """A line for each figure of `check_judge`."""
    return "\n".join(f"{name.replace('_', ' '):<20}{_shown(name, value)}" for name, value in found.items())


def _shown(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name.startswith("num") or isinstance(value, int):
        return str(value)
    return f"{value:.2f}" if name.endswith("kappa") or name == "cost" else percent(value)


def _in_order(pair: Pair, place: int) -> tuple[Trajectory, Trajectory]:
    """The better one first in every second pair."""
    sides = pair.chosen.trajectory, pair.rejected.trajectory
    return sides if place % 2 == 0 else sides[::-1]


def _both(first: Sequence[Any], second: Sequence[Any]) -> list[tuple[Any, Any]]:
    return [both for both in zip(first, second, strict=True) if None not in both]


def _length(trajectory: Trajectory) -> int:
    return sum(len(message.content) for message in trajectory.messages if message.role == "assistant")
