"""What credit is given by: the episodes of a task, what each earned, and the turns that it took."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of the agent's. `state`: what it had read before it, as a digest; episodes whose
    turns have one state were at one point. `score`: how well the turn did by itself, 0 to 1; None
    where nobody can say, as of a message without a call."""

    num_tokens: int
    state: str
    score: float | None


@dataclass(frozen=True, slots=True)
class Group:
    """The episodes of one task that were not lost, G of them, those that joined among them: what
    each earned, whether it succeeded, and its turns. `scores_G`: what the reward is a sum of, by
    name, with its weight in it. `is_joined_G`: whether it was not played now; all false where it is
    empty."""

    task_id: str
    rewards_G: FloatArray
    successes_G: NDArray[np.bool_]
    turns_G: Sequence[Sequence[Turn]] = ()
    scores_G: Mapping[str, FloatArray] = field(default_factory=dict)
    is_joined_G: Sequence[bool] = ()


TurnCredit = list[list[FloatArray]]  # of each group, of each member, one number for each of its turns
TokenCredit = list[list[FloatArray]]  # the same for each of the agent's tokens


def of_members(by_member: FloatArray, group: Group) -> list[FloatArray]:
    """Each turn gets its member's number."""
    return [np.full(len(turns), number) for number, turns in zip(by_member.tolist(), group.turns_G, strict=True)]


def over_tokens(by_turn: FloatArray, turns: Sequence[Turn]) -> FloatArray:
    """Each token gets its turn's number: 1, 2 of turns of two tokens and one are 1, 1, 2."""
    return np.repeat(by_turn, [turn.num_tokens for turn in turns])
