"""The episodes of a task as credit sees them: a group of members, each with its turns."""

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from posttrain.evals.groups import are_equal
from posttrain.train.advantages.groups import Group, Turn
from posttrain.types import ScoredEpisode, Task, Trajectory


@dataclass(frozen=True, slots=True)
class EpisodeGroup:
    """The episodes of one task: those played now, lost ones among them, and those that joined, of
    which `is_shown` says whether an expert wrote them. `has_spread`: whether the rewards of those
    that were played differ, by more than rounding."""

    task: Task
    played: Sequence[ScoredEpisode]
    joined: Sequence[ScoredEpisode] = ()
    is_shown: bool = False
    group: Group = field(init=False)
    has_spread: bool = field(init=False)

    def __post_init__(self) -> None:
        group = _group(self.task.task_id, self.kept, len(self.joined))
        rewards_G = group.rewards_G[: len(group.rewards_G) - len(self.joined)]
        object.__setattr__(self, "group", group)
        object.__setattr__(self, "has_spread", len(rewards_G) > 1 and not are_equal(rewards_G))

    @property
    def kept(self) -> list[ScoredEpisode]:
        """Its members: all but the lost ones."""
        return [*(one for one in self.played if not one.is_lost), *self.joined]

    @property
    def is_joined_G(self) -> NDArray[np.bool_]:  # noqa: N802 — a shape is a capital
        """Of each member whether it joined."""
        return np.array(self.group.is_joined_G, dtype=np.bool_)


def turns_of(trajectory: Trajectory) -> list[Turn]:
    """The agent's messages, by the runs of its tokens. A state is what was read before the turn,
    not what the agent wrote itself."""
    turns: list[Turn] = []
    read = hashlib.blake2b(digest_size=16)
    mask_T, ids_T = np.asarray(trajectory.mask), np.asarray(trajectory.token_ids, dtype=np.int64)
    scores, starts = _turn_scores(trajectory), np.flatnonzero(np.diff(mask_T, prepend=-1))
    for start, end in itertools.pairwise([*starts.tolist(), len(mask_T)]):
        if mask_T[start]:
            score = scores[len(turns)] if len(turns) < len(scores) else None
            turns.append(Turn(end - start, read.hexdigest(), score))
        else:
            read.update(ids_T[start:end].tobytes() + b"|")
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
