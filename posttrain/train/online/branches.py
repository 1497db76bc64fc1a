"""Branches of a step's episodes: which turns are played on from, under which seeds, and the values
that come of it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from posttrain.rollout.episode_sampler import Stream, episode_seeds
from posttrain.rollout.play_on import Fork
from posttrain.train.advantages.branch_values import BranchValueCredit
from posttrain.train.advantages.groups import EpisodeGroup, TokenAdvantages, TurnAdvantages
from posttrain.types import ScoredEpisode, Trajectory

PlayOn = Callable[[Sequence[Fork]], Sequence[ScoredEpisode]]


@dataclass(frozen=True, slots=True)
class StepBranches:
    """`values`: before each turn, NaN where nothing was played or all of it was lost.
    `num_tokens`: written by branches, lost ones included."""

    values: TurnAdvantages
    num_played: int
    num_lost: int
    num_tokens: int


def play_branches(
    groups: Sequence[EpisodeGroup],
    credit: BranchValueCredit,
    play_on: PlayOn,
    *,
    entropies: TokenAdvantages | None,
    seed: int,
    step: int,
) -> StepBranches:
    """All branches of a step in one call of `play_on`. They are the same for any number of
    processes and after a kill: seeds are of the step and a branch's place in it."""
    values = [[np.full(len(turns), np.nan) for turns in one.group.turns_G] for one in groups]
    found = credit.points([one.group for one in groups], entropies)
    points = [
        (index, member, turn, number)
        for index, group in enumerate(groups)
        for member, one in enumerate(group.members)
        for numbers in [_numbers(one.trajectory, len(group.group.turns_G[member]))]
        for turn in found[index][member]
        for number in numbers[turn : turn + 1]
    ]
    # consecutive: two branches of a task with one seed would be one branch
    [first] = episode_seeds(Stream.VALUES, seed, step, count=1)
    forks: list[Fork] = []
    for index, member, _, number in points:
        recorded = groups[index].members[member].trajectory
        for _ in range(credit.branches):
            own = replace(recorded, seed=(first + len(forks)) % 2**32)
            forks.append(Fork(groups[index].task, own, number))
    played = list(play_on(forks)) if forks else []
    num_tokens = 0
    for place, (index, member, turn, _) in enumerate(points):
        branches = played[place * credit.branches : (place + 1) * credit.branches]
        num_given = sum(one.num_tokens for one in groups[index].group.turns_G[member][:turn])
        # one that was lost in the given turns has fewer than them
        num_tokens += sum(max(sum(one.trajectory.mask) - num_given, 0) for one in branches)
        if kept := [one.rule_reward + one.bonus for one in branches if not one.is_aborted]:
            values[index][member][turn] = math.fsum(kept) / len(kept)
    return StepBranches(values, len(played), sum(one.is_aborted for one in played), num_tokens)


def _numbers(recorded: Trajectory, num_turns: int) -> list[int]:
    """The number, from 1, of each turn with tokens among all of the record's; none where it cannot
    be played on: its program left conversations that are not recorded."""
    found = [number for number, turn in enumerate(recorded.turns, 1) if turn.num_written]
    return found if len(found) == num_turns and not recorded.num_forks else []
