"""The episodes of a task as credit sees them: a group of members, each with its turns."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from posttrain.algorithms.rollouts import ScoredEpisode
from posttrain.evals.groups import are_equal
from posttrain.rl.credit.groups import Group, Turn
from posttrain.types import Task, Trajectory


@dataclass(frozen=True, slots=True)
class PlayedGroup:
    """The episodes of one task: those played now, lost ones among them, and those that joined, of
    which `is_shown` says whether an expert wrote them."""

    task: Task
    played: Sequence[ScoredEpisode]
    joined: Sequence[ScoredEpisode] = ()
    is_shown: bool = False
    group: Group = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "group", _group(self.task.task_id, self.kept, len(self.joined)))

    @property
    def kept(self) -> list[ScoredEpisode]:
        """Its members: all but the lost ones."""
        return [*(one for one in self.played if not one.is_lost), *self.joined]

    @property
    def is_joined_G(self) -> NDArray[np.bool_]:  # noqa: N802 — a shape is a capital
        """Of each member whether it joined."""
        return np.array(self.group.is_joined_G, dtype=np.bool_)

    @property
    def has_spread(self) -> bool:
        """Whether the rewards of those that were played differ, by more than rounding."""
        rewards_G = [one.rule_reward + one.bonus for one in self.played if not one.is_lost]
        return len(rewards_G) > 1 and not are_equal(rewards_G)


def turns_of(trajectory: Trajectory) -> list[Turn]:
    """The agent's messages, by the runs of its tokens. A state is what was read before the turn,
    not what the agent wrote itself."""
    turns: list[Turn] = []
    read = hashlib.blake2b(digest_size=16)
    mask, ids = list(trajectory.mask), list(trajectory.token_ids)
    scores, place = _turn_scores(trajectory), 0
    while place < len(mask):
        end = next((index for index in range(place, len(mask)) if mask[index] != mask[place]), len(mask))
        if mask[place]:
            score = scores[len(turns)] if len(turns) < len(scores) else None
            turns.append(Turn(end - place, read.hexdigest(), score))
        else:
            read.update(np.asarray(ids[place:end], dtype=np.int64).tobytes() + b"|")
        place = end
    return turns


def _turn_scores(trajectory: Trajectory) -> Sequence[float | None]:
    """The world's, where it gives one for each turn; else the share of a turn's calls that
    worked."""
    if trajectory.outcome is not None and trajectory.outcome.turn_scores:
        return trajectory.outcome.turn_scores
    written = [turn for turn in trajectory.turns if turn.num_written]
    return [
        sum(run.outcome == "ok" for run in turn.tool_runs) / len(turn.tool_runs) if turn.tool_runs else None
        for turn in written
    ]


def _group(task_id: str, members: Sequence[ScoredEpisode], num_joined: int) -> Group:
    scores: Mapping[str, None] = dict.fromkeys(name for one in members for name in one.trajectory.scores)
    return Group(
        task_id,
        np.array([one.rule_reward + one.bonus for one in members], dtype=np.float64),
        np.array([one.is_success for one in members], dtype=np.bool_),
        turns_G=[turns_of(one.trajectory) for one in members],
        scores_G={
            name: np.array([one.trajectory.scores.get(name, 0.0) for one in members], dtype=np.float64)
            for name in scores
        },
        is_joined_G=[place >= len(members) - num_joined for place in range(len(members))],
    )
