"""Suggests the turn of a failed episode to edit first: where its value falls.

The value of a turn is the mean strict success of n plays on from there by the policy itself, which
writes that turn anew (Monte Carlo, as in Math-Shepherd, arXiv 2312.08935). A turn whose recorded
message was wrong leaves less behind it than there was before it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from posttrain.data.annotations import item_of
from posttrain.data.schemas import TrajectoryRow
from posttrain.debug.player import Player
from posttrain.rollout.expert_traces import first_deviation
from posttrain.rollout.play_on import Fork
from posttrain.traces.values import TracedEpisode
from posttrain.types import Message, Task, Trajectory
from posttrain.worlds.protocol import ExpertDomain


@dataclass(frozen=True, slots=True)
class Suggestion:
    """`values[k]` is the share of plays on from turn k + 1 that succeeded strictly. `turn` is the
    one to edit first, from 1."""

    values: tuple[float, ...]
    turn: int


def expert_edits(episodes: Iterable[TracedEpisode], domain: ExpertDomain) -> Iterator[Fork]:
    """Edits that the world's expert makes in place of a person: of each failed episode its message
    at the first deviation, for one episode of a task."""
    seen: set[str] = set()
    for one in episodes:
        task, episode = one.task, one.trajectory
        if task.task_id in seen or not one.is_failed or episode.is_aborted:
            continue
        if found := first_deviation(domain, task, episode):
            seen.add(task.task_id)
            yield Fork(task, episode, found[0], message=found[1])


def num_plays(episodes: Sequence[Trajectory], num: int) -> int:
    """Plays that a suggestion for these episodes takes."""
    return num * sum(len(one.turns) for one in episodes)


def suggest(
    tasks: Sequence[Task], episodes: Sequence[Trajectory], player: Player, *, num: int = 8, seed: int = 0
) -> list[Suggestion]:
    """A suggestion for each episode, all plays at once."""
    forks = [
        Fork(task, one, at, num=num, seed=seed)
        for task, one in zip(tasks, episodes, strict=True)
        for at in range(1, len(one.turns) + 1)
    ]
    branches = player.branches(forks)
    shares = [
        sum(branch.is_strict_success for branch in branches[start : start + num]) / num
        for start in range(0, len(branches), num)
    ]
    found, start = [], 0
    for one in episodes:
        values = tuple(shares[start : start + len(one.turns)])
        found.append(Suggestion(values, _steepest(values, float(one.is_strict_success))))
        start += len(one.turns)
    return found


def _steepest(values: Sequence[float], end: float) -> int:
    """The turn over which the value falls the most; of equal falls the first. Values .8, .8, .1 and
    an end of 0: turn 2, over which .7 are lost."""
    after = [*values[1:], end]
    falls = [before - behind for before, behind in zip(values, after, strict=True)]
    return falls.index(max(falls)) + 1


def corrected_forks(
    corrections: Mapping[str, Sequence[tuple[str, int, Message]]],
    rows: Iterable[TrajectoryRow],
    tasks: Mapping[str, Task],
) -> dict[str, list[Fork]]:
    """By annotator the episodes with a corrected turn, of those of `rows` whose task is known.
    `corrections` are as `corrections_of` (posttrain/data/annotations.py) has them."""
    forks: dict[str, list[Fork]] = {}
    for row in rows:
        played = row.trajectory
        turn_of = {turn.message_index: number for number, turn in enumerate(played.turns, 1)}
        for who, place, message in corrections.get(item_of(row).item_id, ()):
            if place in turn_of and played.task_id in tasks:
                forks.setdefault(who, []).append(Fork(tasks[played.task_id], played, turn_of[place], message=message))
    return forks
