"""Makes a row for each synthetic point: a new episode like the point's nearest demonstration.

Editing texts and numbers would invent tool results. Instead the world makes a new task of the same
template, about other entities, and the same expert plays it until it takes the demonstration's
steps: so every result is real, and flaws stay as frequent. A demonstration that cannot be played
again (an imported one, or steps that do not come back) is duplicated instead, and counted.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from posttrain.data.resampling.cells import opening_text, steps_of
from posttrain.data.resampling.smote import Point
from posttrain.data.schemas import TrajectoryRow, trajectory_row
from posttrain.types import Task, Trajectory
from posttrain.worlds.protocol import RegeneratingDomain

ROUNDS_PER_SEED = 9  # attempts with one source's template before the next nearest source
PLAYS_PER_TASK = 3  # by experts of different seeds; a flaw of rate 0.3 recurs in two of three tasks


@dataclass(frozen=True, slots=True)
class ReplayContext:
    """The real rows, their tasks by id, the world, `replay(tasks, seeds)` by the expert that made
    the real rows, the tasks of all other splits, which a new one may not share anything with, and
    questions asked outside of `rows` (`asked`)."""

    rows: Sequence[TrajectoryRow]
    tasks: Mapping[str, Task]
    domain: RegeneratingDomain
    replay: Callable[[Sequence[Task], Sequence[int]], list[Trajectory]]
    held_out: Sequence[Task]
    asked: AbstractSet[str] = frozenset()


@dataclass(frozen=True, slots=True)
class NewRows:
    """`rows[i]` is for the i-th point; `is_new[i]` is False where it duplicates the nearest row."""

    rows: list[TrajectoryRow]
    is_new: list[bool]


def regenerate(points: Sequence[Point], context: ReplayContext, *, seed: int) -> NewRows:
    """A row for every point, in their order; each new one asks a new question. Raises RuntimeError
    where the world made a task that shares something with a held-out one: our bug."""
    rows = context.rows
    steps = [steps_of(row.trajectory.messages) for row in rows]
    texts = {*context.asked, *(opening_text(row.trajectory.messages) for row in rows)}
    tried: dict[int, Task] = {}  # by point: plays of one task are tried before the next is made
    found: dict[int, TrajectoryRow] = {}
    held_out_texts = {opening_text(task.messages) for task in context.held_out}
    held_out_entities = {entity for task in context.held_out for entity in task.entities}
    for attempt in range(ROUNDS_PER_SEED * max((len(point.seeds) for point in points), default=0)):
        which, again = divmod(attempt, ROUNDS_PER_SEED)
        drafts: list[tuple[int, Task, int]] = []  # point, task, seed of the expert
        for index, point in enumerate(points):
            if index in found or which >= len(point.seeds):
                continue
            source = rows[point.seeds[which]].trajectory
            if (task := context.tasks.get(source.task_id)) is None:
                continue
            draw = random.Random(f"{seed} {index} {attempt}")
            if again % PLAYS_PER_TASK == 0 or index not in tried:
                tried[index] = context.domain.regenerate(task, seed=draw.getrandbits(31))
            if opening_text(tried[index].messages) in texts:
                del tried[index]
                continue
            # a source's first attempt has its expert's seed: most likely to take the same steps
            drafts.append((index, tried[index], draw.getrandbits(31) if again else source.seed))
        for _, task, _ in drafts:
            _refuse_leak(task, held_out_texts, held_out_entities)
        played = context.replay([task for _, task, _ in drafts], [own for _, _, own in drafts]) if drafts else []
        for (index, task, _), trajectory in zip(drafts, played, strict=True):
            text = opening_text(task.messages)
            if steps_of(trajectory.messages) == steps[points[index].seeds[which]] and text not in texts:
                texts.add(text)
                found[index] = trajectory_row(trajectory, task, context.domain.tools)
    made = [found.get(index, rows[point.seeds[0]]) for index, point in enumerate(points)]
    return NewRows(made, [index in found for index in range(len(points))])


def _refuse_leak(task: Task, held_out_texts: AbstractSet[str], held_out_entities: AbstractSet[str]) -> None:
    shared = sorted(held_out_entities & set(task.entities))
    if task.split != "sft" or shared or opening_text(task.messages) in held_out_texts:
        raise RuntimeError(
            f"the world realised task {task.task_id} of split {task.split} for training; "
            f"it shares {shared or 'its text'}"
        )
