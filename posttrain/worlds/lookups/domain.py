"""The base of a lookup world's domain: tasks in their order, a world for each episode, the expert.

Nothing in such a world changes: an agent finds an answer by the right calls on the right side.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from posttrain.runtime.knobs import Section
from posttrain.types import Message, Outcome, Split, Task, Trajectory
from posttrain.worlds.lookups.demonstrations import FLAWS, Flaw, Handbook, draw_flaws, expert_script
from posttrain.worlds.lookups.gold import Ask, gold_of, parse_final
from posttrain.worlds.lookups.grade import SCORES, grade
from posttrain.worlds.lookups.schedule import Cell, cell_of, cells_in_turn
from posttrain.worlds.params import WorldParams
from posttrain.worlds.protocol import Expert, World
from posttrain.worlds.scripts import ScriptedExpert
from posttrain.worlds.tools import Tool

NUM_DRAWS = 100  # of one task: as many in a row that repeat earlier texts mean that there are no more


class LookupDomain(ABC):
    """`separator` joins the parts of every seed, and so is part of each task's bytes."""

    name: str
    tools: Mapping[str, Tool]
    handbook: Handbook
    separator: str
    scores: Sequence[str] = SCORES

    def __init__(self, world: WorldParams, flaw_rates: Mapping[Flaw, float]) -> None:
        self._seed, self._flaw_rates = world.seed, flaw_rates

    @abstractmethod
    def weights(self, split: Split) -> Mapping[Cell, int]:
        """The cells of a split, with how often each comes."""

    @abstractmethod
    def make(self, cell: Cell, split: Split, rng: random.Random, *, template: str | None = None) -> Task:
        """A task of the cell; with `template`, that very question about other entities."""

    @abstractmethod
    def side_reply(self, task: Task) -> str:
        """The user's answer to an agent that asks for the side."""

    def tasks(self, split: Split, count: int) -> list[Task]:
        """Cells come in turn by their weights; no two tasks of a split have one text."""
        tasks = list(islice(self._distinct(split), count))
        if len(tasks) < count:
            raise ValueError(
                f"the world {self.name} has {len(tasks)} different tasks for {split} and {count} are wanted; "
                f"lower world.num_{split.partition('_')[0]}_tasks"
            )
        return tasks

    def open(self, task: Task) -> World:
        return LookupWorld(task, self)

    def expert(self, task: Task, *, seed: int, is_flawless: bool, reasoning_frac: float) -> Expert:
        rng = self._rng(task.task_id, seed)
        flaws = draw_flaws(task, self.handbook, {} if is_flawless else self._flaw_rates, rng)
        is_reasoning = rng.random() < reasoning_frac
        return ScriptedExpert(expert_script(task, self.handbook, flaws, is_reasoning=is_reasoning))

    def regenerate(self, task: Task, *, seed: int) -> Task:
        """A text that names no entity may come again: its template has only so many."""
        cell = cell_of(task, self.handbook.sides.label)
        return self.make(cell, task.split, self._rng(task.task_id, seed), template=task.template)

    def describe_goal(self, task: Task) -> str:
        return str(gold_of(task))

    def _distinct(self, split: Split) -> Iterator[Task]:
        seen: set[str] = set()
        for index, cell in enumerate(cells_in_turn(self.weights(split))):
            draws = (self.make(cell, split, self._rng(self._seed, split, index, draw)) for draw in range(NUM_DRAWS))
            task = next((task for task in draws if task.messages[-1].content not in seen), None)
            if task is None:
                return
            seen.add(task.messages[-1].content)
            yield task

    def _rng(self, *parts: object) -> random.Random:
        return random.Random(self.separator.join(map(str, parts)))


class LookupWorld:
    """One episode, whose only state is the task."""

    def __init__(self, task: Task, domain: LookupDomain) -> None:
        self._task, self._domain = task, domain
        self._tools = {name: domain.tools[name] for name in task.tools}

    def tools(self) -> Mapping[str, Tool]:
        return self._tools

    def user_reply(self, message: Message) -> str | None:
        """The side, where the question left it open. An agent that asks though it was said gets no
        answer, and the episode is over: or asking first would be safe in every task."""
        asked = parse_final(message.content)
        if isinstance(asked, Ask) and asked.what == gold_of(self._task).asks:
            return self._domain.side_reply(self._task)
        return None

    def grade(self, trajectory: Trajectory) -> Outcome:
        return grade(trajectory, self._task, sides=self._domain.handbook.sides, tools=self._tools)


def flaw_rates_of(rates: Section, knobs: Mapping[Flaw, str]) -> dict[Flaw, float]:
    """The rate of each flaw from a world's knobs, where `knobs` has those of another name."""
    return {flaw: getattr(rates, knobs.get(flaw, flaw)) for flaw in FLAWS}
