"""A synthetic point becomes a row: its nearest real demonstration played again about other
entities, by the same expert.

Editing texts and numbers would make results that no tool ever gave. Instead the world makes a new
task of the same template and the expert plays it, until it takes the same steps as the
demonstration did; so every result is what the tool says, and a flaw is as frequent as it was. What
cannot be played again (an imported trajectory, or steps that do not come back) is duplicated, and
counted.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from posttrain.data.resampling.cells import opening_text, steps_of
from posttrain.data.resampling.smote import Point
from posttrain.data.schemas import TrajectoryRow, trajectory_row
from posttrain.types import Task, Trajectory
from posttrain.worlds.protocol import RegeneratingDomain

ROUNDS_PER_SEED = 9  # plays of one source's template before the next nearest source is tried
PLAYS_PER_TASK = 3  # by experts of different seeds; a flaw of rate 0.3 comes back in two of three tasks


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What new rows are made with: the real rows, their tasks by id, the world, `replay(tasks,
    seeds)` by the expert that made the real rows, and the tasks of all other splits, which a new
    one may not touch. `asked`: what more has been asked already, where `rows` are not all."""

    rows: Sequence[TrajectoryRow]
    tasks: Mapping[str, Task]
    domain: RegeneratingDomain
    replay: Callable[[Sequence[Task], Sequence[int]], list[Trajectory]]
    held_out: Sequence[Task]
    asked: AbstractSet[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Realised:
    """`rows[i]` was made for the i-th point; `is_new[i]` is False where it is a duplicate of the
    point's nearest row."""

    rows: list[TrajectoryRow]
    is_new: list[bool]


@dataclass(frozen=True, slots=True)
class _Draft:
    """A task that may become the row of the point at `index`, if its play takes the steps of the
    real row at `source`."""

    index: int
    source: int
    task: Task
    expert_seed: int


@dataclass(slots=True)
class _Progress:
    """What has been asked already, by real and new rows; the task being tried and the row found, by
    point."""

    texts: set[str]
    tasks: dict[int, Task] = field(default_factory=dict)
    found: dict[int, TrajectoryRow] = field(default_factory=dict)


def regenerate(points: Sequence[Point], rehearsal: Rehearsal, *, seed: int) -> Realised:
    """A row for every point, in their order; each new one asks what no other row asks. Raises
    RuntimeError where the world made a task that touches held-out ones: our bug.
    """
    rows = rehearsal.rows
    steps = [steps_of(row.trajectory.messages) for row in rows]
    progress = _Progress({*rehearsal.asked, *(opening_text(row.trajectory.messages) for row in rows)})
    refuse_leaks = _leak_check(rehearsal.held_out)
    for attempt in range(ROUNDS_PER_SEED * max((len(point.seeds) for point in points), default=0)):
        drafts = _drafts(points, rehearsal, progress, attempt=attempt, seed=seed)
        refuse_leaks([draft.task for draft in drafts])
        played = (
            rehearsal.replay([draft.task for draft in drafts], [draft.expert_seed for draft in drafts])
            if drafts
            else []
        )
        for draft, trajectory in zip(drafts, played, strict=True):
            text = opening_text(draft.task.messages)
            if steps_of(trajectory.messages) == steps[draft.source] and text not in progress.texts:
                progress.texts.add(text)
                progress.found[draft.index] = trajectory_row(trajectory, draft.task, rehearsal.domain.tools)
    made = [progress.found.get(index, rows[point.seeds[0]]) for index, point in enumerate(points)]
    return Realised(made, [index in progress.found for index in range(len(points))])


def _drafts(
    points: Sequence[Point], rehearsal: Rehearsal, progress: _Progress, *, attempt: int, seed: int
) -> list[_Draft]:
    """One for every point that has no row yet. A source's first play keeps the seed of its expert,
    later ones draw another."""
    drafts = []
    which, again = divmod(attempt, ROUNDS_PER_SEED)
    for index, point in enumerate(points):
        if index in progress.found or which >= len(point.seeds):
            continue
        played = rehearsal.rows[point.seeds[which]].trajectory
        task = rehearsal.tasks.get(played.task_id)
        if task is None:
            continue
        draw = random.Random(f"{seed} {index} {attempt}")
        if again % PLAYS_PER_TASK == 0 or index not in progress.tasks:
            progress.tasks[index] = rehearsal.domain.regenerate(task, seed=draw.getrandbits(31))
        new = progress.tasks[index]
        if opening_text(new.messages) in progress.texts:
            del progress.tasks[index]
            continue
        drafts.append(_Draft(index, point.seeds[which], new, draw.getrandbits(31) if again else played.seed))
    return drafts


def _leak_check(held_out: Sequence[Task]) -> Callable[[Sequence[Task]], None]:
    texts = {opening_text(task.messages) for task in held_out}
    entities = {entity for task in held_out for entity in task.entities}

    def refuse_leaks(tasks: Sequence[Task]) -> None:
        for task in tasks:
            shared = sorted(entities & set(task.entities))
            if task.split != "sft" or shared or opening_text(task.messages) in texts:
                raise RuntimeError(
                    f"the world realised task {task.task_id} of split {task.split} for training; "
                    f"it shares {shared or 'its text'}"
                )

    return refuse_leaks
