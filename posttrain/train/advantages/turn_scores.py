"""Credits turns with how well their calls did by themselves, besides what the whole episode earned:
those up to the first tool result (MT-GRPO, arXiv 2505.11821), or every one with its own score."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from posttrain.train.advantages.episode import episode_advantages, is_dropped
from posttrain.train.advantages.groups import FloatArray, Group, Turn, TurnCredit
from posttrain.train.advantages.history import TaskHistory
from posttrain.train.advantages.params import BaselineParams, TurnScoresCredit, VirtualBest, VirtualEnds


def turn_scores(groups: Sequence[Group], credit: TurnScoresCredit, history: TaskHistory) -> TurnCredit:
    """With `turns: first`, A_outcome + weight * A_turn for the turns up to and with the first that
    has a score, which is the one whose call brings the first result; A_outcome for those after it.
    A_outcome compares rewards, A_turn that first score, in the same way; 1 is a score's virtual
    best and 0 its worst. With `every`, see `_every`.

    An episode in which nothing has a score called nothing. As released (`_assign_advantages`), all
    of its turns get what a combined reward gives, which is compared by itself; ours is reward +
    weight * score with a score of 0, released was the sum without the weight. It counts as 0 in
    A_turn too.

    Expected gradient: unscaled, the share that the baseline's docstring says, of another objective:
    J + weight * E[score]. There is no bias from the policy's choice of when to stop: whether the
    first call is still to come was settled before the turn. Compared only with those that called,
    it would have one, -weight * E[score | called] times the gradient of P(called) (verl #7244).

    Rewards 1, 0, first scores 1/2 and none, unscaled, weight 1: 1/2 + 1/4 up to the call and 1/2
    after it, -1/2 - 1/4 for all of the other. Raises ValueError, with the task, for a score that is
    not in [0, 1].
    """
    for group in groups:
        _refuse(group)
    outcomes = episode_advantages(groups, credit, history)
    if credit.turns == "every":
        return _every(groups, outcomes, credit, history)
    firsts = _compared(groups, credit, history, of_reward=0.0, of_score=1.0)
    combined = _compared(groups, credit, history, of_reward=1.0, of_score=credit.weight)
    return [
        [
            _of_member(turns, outcome, credit.weight * first, both)
            for turns, outcome, first, both in zip(group.turns_G, *of_group, strict=True)
        ]
        for group, *of_group in zip(groups, outcomes, firsts, combined, strict=True)
    ]


def first_call(turns: Sequence[Turn]) -> int | None:
    """The place of the first turn with a score; None where there is none."""
    return next((place for place, turn in enumerate(turns) if turn.score is not None), None)


def _of_member(turns: Sequence[Turn], outcome: float, first: float, both: float) -> FloatArray:
    """A number for each turn: `both` where nothing was called."""
    called = first_call(turns)
    if called is None:
        return np.full(len(turns), both)
    by_turn: FloatArray = np.where(np.arange(len(turns)) <= called, outcome + first, outcome)
    return by_turn


def _every(
    groups: Sequence[Group], outcomes: Sequence[FloatArray], credit: TurnScoresCredit, history: TaskHistory
) -> TurnCredit:
    """A_outcome for each turn, and weight * A_turn for one that has a score, which is compared with
    all the scores of the group's turns.

    Expected gradient: besides the outcome's, the sum over turns of weight * E[(score - mean) times
    that of log p(turn)]: of no objective. A turn is judged by itself, not by what it leads to; one
    whose score is below the mean is pushed down though it was needed, and calling nothing is judged
    by the outcome alone.

    Rewards 1, 0, scores 1 and 1/4 of the first's two turns and 1/4 of the other's, unscaled, weight
    1: 1/2 + 1/2 and 1/2 - 1/4, and -1/2 - 1/4.
    """
    pools = [
        replace(group, rewards_G=scores, successes_G=np.zeros(len(scores), dtype=np.bool_))
        for group in groups
        for scores in [np.array(_scores(group), dtype=np.float64)]
    ]
    found = _compared_alone(groups, pools, credit, history, of_reward=0.0, of_score=1.0)
    compared = [
        iter(one.tolist() if len(group.rewards_G) > 1 else [0.0] * len(one))
        for group, one in zip(groups, found, strict=True)
    ]
    return [
        [
            np.array([outcome + (0.0 if turn.score is None else credit.weight * next(left)) for turn in turns])
            for turns, outcome in zip(group.turns_G, of_group.tolist(), strict=True)
        ]
        for group, of_group, left in zip(groups, outcomes, compared, strict=True)
    ]


def _first_scores(group: Group) -> FloatArray:
    """Shape (G,), 0 where nothing was called."""
    found = [next((turn.score for turn in turns if turn.score is not None), 0.0) for turns in group.turns_G]
    return np.array(found, dtype=np.float64)


def _compared(
    groups: Sequence[Group], credit: TurnScoresCredit, history: TaskHistory, *, of_reward: float, of_score: float
) -> list[FloatArray]:
    """Of `of_reward` times the reward and `of_score` times the first score."""
    changed = [replace(one, rewards_G=of_reward * one.rewards_G + of_score * _first_scores(one)) for one in groups]
    return _compared_alone(groups, changed, credit, history, of_reward=of_reward, of_score=of_score)


def _compared_alone(
    groups: Sequence[Group],
    changed: Sequence[Group],
    credit: TurnScoresCredit,
    history: TaskHistory,
    *,
    of_reward: float,
    of_score: float,
) -> list[FloatArray]:
    """`changed` have in place of rewards what is compared. Nothing of a group that is dropped."""
    baseline = _baseline_of(credit.baseline, of_reward=of_reward, of_score=of_score)
    found = episode_advantages(changed, credit.model_copy(update={"baseline": baseline, "drop": "none"}), history)
    return [
        np.zeros_like(of_group) if is_dropped(group, credit) else of_group
        for group, of_group in zip(groups, found, strict=True)
    ]


def _baseline_of(baseline: BaselineParams, *, of_reward: float, of_score: float) -> BaselineParams:
    match baseline:
        case VirtualBest(best=best):
            return baseline.model_copy(update={"best": of_reward * best + of_score})
        case VirtualEnds(worst=worst, best=best):
            return baseline.model_copy(update={"worst": of_reward * worst, "best": of_reward * best + of_score})
        case _:
            return baseline


def _scores(group: Group) -> list[float]:
    return [turn.score for turns in group.turns_G for turn in turns if turn.score is not None]


def _refuse(group: Group) -> None:
    if wrong := [score for score in _scores(group) if not 0 <= score <= 1]:
        raise ValueError(
            f"a turn of task {group.task_id} has a score of {wrong[0]:g}; it lies in [0, 1], or turns could not be "
            "compared with rewards: see what the world gives as turn_scores"
        )
