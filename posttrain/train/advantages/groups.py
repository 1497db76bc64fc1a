"""A task's episodes in a step, what each earned, and its turns."""

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from posttrain.evals.groups import are_equal
from posttrain.types import ScoredEpisode, Task, Trajectory

FloatArray = NDArray[np.float64]
TurnAdvantages = list[list[FloatArray]]  # per group, per member: one number for each of its turns
TokenAdvantages = list[list[FloatArray]]  # the same for each of the agent's tokens


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of the agent. `state`: a digest of what it had read before. `score`: how good
    the turn was by itself, 0 to 1; None where nobody can say."""

    num_tokens: int
    state: str
    score: float | None


@dataclass(frozen=True, slots=True)
class Group:
    """The G episodes of a task that were not lost, replayed ones last. `scores_G`: the reward's
    terms."""

    task_id: str
    rewards_G: FloatArray
    successes_G: NDArray[np.bool_]
    turns_G: Sequence[Sequence[Turn]] = ()
    scores_G: Mapping[str, FloatArray] = field(default_factory=dict)
    is_replayed_G: Sequence[bool] = ()


@dataclass(frozen=True, slots=True)
class EpisodeGroup:
    """A task's `episodes` of this step, lost ones among them, and `replayed` ones, which an expert
    wrote. `has_spread`: rewards of those played differ by more than rounding."""

    task: Task
    episodes: Sequence[ScoredEpisode]
    replayed: Sequence[ScoredEpisode] = ()
    group: Group = field(init=False)
    has_spread: bool = field(init=False)

    def __post_init__(self) -> None:
        group = _group(self.task.task_id, self.members, len(self.replayed))
        rewards_G = group.rewards_G[: len(group.rewards_G) - len(self.replayed)]
        object.__setattr__(self, "group", group)
        object.__setattr__(self, "has_spread", len(rewards_G) > 1 and not are_equal(rewards_G))

    @property
    def members(self) -> list[ScoredEpisode]:
        return [*(one for one in self.episodes if not one.is_aborted), *self.replayed]


def turns_of(trajectory: Trajectory) -> list[Turn]:
    """The agent's messages: runs of its tokens in the mask."""
    turns: list[Turn] = []
    # A state is what was read, not what the agent wrote itself: two wordings of one call lead to
    # the same state.
    read = hashlib.blake2b(digest_size=16)
    mask_T, ids_T = np.asarray(trajectory.mask), np.asarray(trajectory.token_ids, dtype=np.int64)
    # a run begins where the mask changes; -1 before the first token makes that one a change, too
    scores, starts = _turn_scores(trajectory), np.flatnonzero(np.diff(mask_T, prepend=-1))
    for start, end in itertools.pairwise([*starts.tolist(), len(mask_T)]):
        if mask_T[start]:
            score = scores[len(turns)] if len(turns) < len(scores) else None
            turns.append(Turn(end - start, read.hexdigest(), score))
        else:
            read.update(ids_T[start:end].tobytes() + b"|")  # the bar: 1, 2 read in two parts is another state
    return turns


def over_tokens(by_turn: FloatArray, turns: Sequence[Turn]) -> FloatArray:
    """Each token gets its turn's number: 1, 2 for turns of two tokens and one are 1, 1, 2."""
    return np.repeat(by_turn, [turn.num_tokens for turn in turns])


def _turn_scores(trajectory: Trajectory) -> Sequence[float | None]:
    """The world's own, else the share of a turn's calls that worked."""
    if trajectory.outcome is not None and trajectory.outcome.turn_scores:
        return trajectory.outcome.turn_scores
    written = [turn for turn in trajectory.turns if turn.num_written]
    return [
        sum(run.outcome == "ok" for run in turn.tool_runs) / len(turn.tool_runs) if turn.tool_runs else None
        for turn in written
    ]


def _group(task_id: str, members: Sequence[ScoredEpisode], num_replayed: int) -> Group:
    names = dict.fromkeys(name for one in members for name in one.trajectory.scores)
    return Group(
        task_id,
        np.array([one.rule_reward + one.bonus for one in members], dtype=np.float64),
        np.array([one.is_success for one in members], dtype=np.bool_),
        turns_G=[turns_of(one.trajectory) for one in members],
        scores_G={
            name: np.array([one.trajectory.scores.get(name, 0.0) for one in members], dtype=np.float64)
            for name in names
        },
        is_replayed_G=[place >= len(members) - num_replayed for place in range(len(members))],
    )
