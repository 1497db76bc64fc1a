"""Monte-Carlo values of the states of episodes, the labels of a process reward model: the share of
plays on from a state that succeed strictly (soft labels, Math-Shepherd, arXiv 2312.08935).

A state is where the agent is about to write: it has read the task, or the results of the turn
before. An episode of K turns has K + 1 of them, the last one behind its last turn. The first one's
label is of the task's own plays, the last one's is the episode's own outcome.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from posttrain.rollout.episode_sampler import EpisodeSampler, sample_groups
from posttrain.rollout.expert_traces import first_deviation
from posttrain.rollout.play_on import Fork, sample_branches
from posttrain.train.advantages.branch_values import BranchValueCredit
from posttrain.train.advantages.groups import EpisodeGroup, FloatArray
from posttrain.train.online.branches import play_branches
from posttrain.train.params import TrainProcessModelParams
from posttrain.types import ScoredEpisode, Task, Trajectory
from posttrain.worlds.protocol import Domain, ExpertDomain

FORKS_AT_ONCE = 2048  # between two reports of progress


@dataclass(frozen=True, slots=True)
class LabelledEpisode:
    """`labels`: of its K + 1 states, NaN where no play from there was kept. `flawed_turn`: the
    first, from 0 among the K, at which the expert would have written otherwise; None where there is
    none or no expert. `first_call`: the first turn with a call, 0 where there is none."""

    trajectory: Trajectory
    labels: FloatArray
    flawed_turn: int | None = None
    first_call: int = 0


@dataclass(frozen=True, slots=True)
class LabelledTasks:
    """Labelled episodes of each task, aborted ones left out. `num_tokens`: written by the episodes
    and by the plays on from their turns."""

    episodes: Sequence[Sequence[LabelledEpisode]]
    num_tokens: tuple[int, int]


def label_states(
    sampler: EpisodeSampler,
    tasks: Sequence[Task],
    params: TrainProcessModelParams,
    *,
    seed: int,
    progress: Callable[[int, int], None] | None = None,
) -> LabelledTasks:
    """Play `samples_per_task` episodes of each task and, from behind each turn but the last of
    each, `branches_per_turn` to their end, all by the sampler's model."""
    size = params.samples_per_task
    played, _ = sample_groups(sampler, tasks, num_samples=size, seed=seed)
    groups = [
        EpisodeGroup(task, [ScoredEpisode(_outcome(one)) for one in played[place * size : (place + 1) * size]])
        for place, task in enumerate(tasks)
    ]

    def play_on(forks: Sequence[Fork]) -> list[ScoredEpisode]:
        found: list[ScoredEpisode] = []
        for start in range(0, len(forks), FORKS_AT_ONCE):
            part = sample_branches(sampler, forks[start : start + FORKS_AT_ONCE])
            found += [ScoredEpisode(_outcome(one)) for one in part]
            if progress is not None:
                progress(len(found), len(forks))
        return found

    rule = BranchValueCredit.model_validate(
        {"type": "branch_values", "branches": params.branches_per_turn, "at": {"type": "turns"}}
        | {"scale": {"type": "none"}}
    )
    branches = play_branches(groups, rule, play_on, entropies=None, seed=seed, step=0)
    labelled = [
        [_labelled(sampler.domain, group, *both) for both in zip(group.members, values, strict=True)]
        for group, values in zip(groups, branches.values, strict=True)
    ]
    return LabelledTasks(labelled, (sum(sum(one.mask) for one in played), branches.num_tokens))


def _outcome(one: Trajectory) -> Trajectory:
    """With its strict success for a reward: values are then shares."""
    return replace(one, reward=float(one.is_strict_success))


def _labelled(domain: Domain, group: EpisodeGroup, member: ScoredEpisode, values_K: FloatArray) -> LabelledEpisode:
    episode, rewards_G = member.trajectory, group.group.rewards_G
    # the task's own plays are from the first state
    labels = np.append(values_K, float(episode.is_strict_success))
    labels[0] = rewards_G.mean()
    numbers = [number for number, turn in enumerate(episode.turns, 1) if turn.num_written]
    found = first_deviation(domain, group.task, episode) if isinstance(domain, ExpertDomain) else None
    messages = episode.turn_messages
    calls = [place for place, number in enumerate(numbers) if (one := messages[number - 1]) and one.tool_calls]
    flawed = numbers.index(found[0]) if found and found[0] in numbers and len(numbers) == len(values_K) else None
    return LabelledEpisode(episode, labels, flawed, calls[0] if calls else 0)
