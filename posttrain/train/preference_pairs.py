"""Preference pairs of a policy's episodes: a better and a worse one of the same task.

Episodes of different tasks are never compared: their rewards differ by how hard the task was. A
task gives one pair, of which the best and the worst show most surely which is better, the closest
what makes the difference; or all of its pairs (InstructGPT, arXiv 2203.02155), which share their
episodes and so count together as one.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Literal

from posttrain.data.preferences import Pair
from posttrain.data.schemas import TrajectoryRow
from posttrain.evals.groups import ROUNDING

NO_PAIRS = (
    "no two episodes of a task earned differently, so there are no pairs: raise sample_preferences.temperature or "
    "num_samples, or take harder tasks (world.max_difficulty)"
)


class PairKind(StrEnum):
    """Difference between a pair's episodes, most telling first."""

    SUCCESS_OVER_FAILURE = "success_over_failure"
    STRICT_OVER_PLAIN = "strict_over_plain"  # both succeeded, the chosen one alone strictly
    BOTH_SUCCEED = "both_succeed"
    BOTH_FAIL = "both_fail"
    FAILURE_OVER_SUCCESS = "failure_over_success"  # only by a reward that is the world's own
    SAID = "said"  # somebody said so


def pairs_of(rows: Sequence[TrajectoryRow], rule: Literal["best_worst", "closest", "all"]) -> list[Pair]:
    """At most one pair per task, in the order of the tasks; of equals the earlier episode is taken,
    and rewards that differ by rounding make none. Lost episodes are in none. `all`: every two
    episodes of a task whose rewards differ, with weights by which each task is drawn as often.

    `best_worst`: rewards 0.2, 1.0, 0.2, 1.0 pair the second with the first. `closest`: of the first
    kind that the task has (`PairKind`), the pair with the smallest difference. With rewards 1.0 and
    0.7 of successes, 0.3 and 0.0 of failures, 0.7 and 0.3: 1.0 with 0.7 is closer, and of a later
    kind.
    """
    kept = [row for row in rows if not row.trajectory.is_aborted]
    if unscored := [row.trajectory_id for row in kept if row.trajectory.reward is None]:
        raise ValueError(f"{len(unscored)} of {len(kept)} episodes have no reward, the first is {unscored[0]}")
    if rule == "all":
        found = [all_pairs_of(group) for group in group_by_task(kept)]
        return [replace(pair, weight=1 / len(own)) for own in found for pair in own]
    choose = _best_and_worst if rule == "best_worst" else _closest
    return [pair for group in group_by_task(kept) if (pair := choose(group)) is not None]


def all_pairs_of(group: Sequence[TrajectoryRow]) -> list[Pair]:
    """Every two episodes of a task whose rewards differ, the better first, to judge by."""
    kept = [row for row in group if not row.trajectory.is_aborted]
    return [pair for one in kept for other in kept if reward_gap(pair := Pair(one, other)) > ROUNDING]


def orders_of(pair: Pair, heads: Collection[str]) -> list[float]:
    """For each score in `heads`: 1 where the chosen has more of it, -1 where less, 0 where as
    much, or where one of the two was not scored."""
    sides = pair.chosen.trajectory.scores, pair.rejected.trajectory.scores
    gaps = [sides[0][name] - sides[1][name] if all(name in one for one in sides) else 0.0 for name in heads]
    return [0.0 if abs(gap) <= ROUNDING else math.copysign(1.0, gap) for gap in gaps]


def group_by_task(rows: Sequence[TrajectoryRow]) -> list[list[TrajectoryRow]]:
    """Each task's episodes, in the order of their first appearance."""
    groups: dict[str, list[TrajectoryRow]] = {}
    for row in rows:
        groups.setdefault(row.trajectory.task_id, []).append(row)
    return list(groups.values())


def kind_of(pair: Pair) -> PairKind:
    """An episode that nobody graded counts as a failure, where nobody said which is better."""
    if pair.said.source == "import":
        return PairKind.SAID
    chosen, rejected = pair.chosen.trajectory, pair.rejected.trajectory
    if chosen.is_success and rejected.is_success:
        is_strict = chosen.is_strict_success and not rejected.is_strict_success
        return PairKind.STRICT_OVER_PLAIN if is_strict else PairKind.BOTH_SUCCEED
    if chosen.is_success:
        return PairKind.SUCCESS_OVER_FAILURE
    return PairKind.FAILURE_OVER_SUCCESS if rejected.is_success else PairKind.BOTH_FAIL


def reward_gap(pair: Pair) -> float:
    return _reward(pair.chosen) - _reward(pair.rejected)


def composition(pairs: Sequence[Pair]) -> Mapping[str, float]:
    """Summary of the pairs: how many of each kind, how far apart in reward, how long.

    Pairs 1.0 over 0.0, a success over a failure, of 2 and 4 agent tokens, and 0.3 over 0.1, both
    failures, of 6 and 4: `num_success_over_failure` and `num_both_fail` 1, other kinds 0;
    `reward_gap_mean` 0.6, `_min` 0.2, `_max` 1.0; `chosen_tokens_mean` and `rejected_tokens_mean`
    4.0. Tokens are 0 where no engine of ours has played. Pairs that somebody said have no gap.
    """
    kinds = [kind_of(pair) for pair in pairs]
    gaps = [reward_gap(pair) for pair, kind in zip(pairs, kinds, strict=True) if kind != PairKind.SAID]
    of_gaps = {"mean": sum(gaps) / len(gaps), "min": min(gaps), "max": max(gaps)} if gaps else {}
    return {
        **{f"num_{kind}": kinds.count(kind) for kind in PairKind},
        **{f"reward_gap_{name}": value for name, value in of_gaps.items()},
        "chosen_tokens_mean": sum(sum(pair.chosen.trajectory.mask) for pair in pairs) / max(1, len(pairs)),
        "rejected_tokens_mean": sum(sum(pair.rejected.trajectory.mask) for pair in pairs) / max(1, len(pairs)),
    }


def _best_and_worst(group: Sequence[TrajectoryRow]) -> Pair | None:
    pair = Pair(max(group, key=_reward), min(group, key=_reward))
    return pair if reward_gap(pair) > ROUNDING else None


def _closest(group: Sequence[TrajectoryRow]) -> Pair | None:
    pairs = [pair for chosen in group for other in group if reward_gap(pair := Pair(chosen, other)) > ROUNDING]
    kinds = [kind_of(pair) for pair in pairs]
    first = next((kind for kind in PairKind if kind in kinds), None)
    of_kind = [pair for pair, kind in zip(pairs, kinds, strict=True) if kind == first]
    if not of_kind:
        return None
    least = min(map(reward_gap, of_kind)) + ROUNDING  # gaps equal but for their last bit: the earlier pair
    return next(pair for pair in of_kind if reward_gap(pair) <= least)


def _reward(row: TrajectoryRow) -> float:
    assert row.trajectory.reward is not None
    return row.trajectory.reward
