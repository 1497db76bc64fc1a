"""The order of a split's cells, balanced at every length, and the identity of a task: the hash of
its content, which is the same on every branch as long as the question is."""

import hashlib
import json
import math
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import cycle
from typing import Literal, cast, get_args

from posttrain.types import Message, Split, Task
from posttrain.worlds.lookups.gold import Gold

Kind = Literal["tool_selection", "multi_step_planning", "timing_decision", "tool_retrieval"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell that the tasks of a split are balanced over. `side` is one of the world's sides,
    `both` or `none`; `language` is `zh` or `en`; `difficulty` is 1 (easiest) to 3."""

    kind: Kind
    side: str
    language: str
    difficulty: int

    def labels(self, side_label: str) -> dict[str, str]:
        """The cell as a task's labels."""
        difficulty = str(self.difficulty)
        return {"kind": self.kind, side_label: self.side, "language": self.language, "difficulty": difficulty}


def cell_of(task: Task, side_label: str) -> Cell:
    labels = task.labels
    return Cell(cast(Kind, labels["kind"]), labels[side_label], labels["language"], int(labels["difficulty"]))


def cells_in_turn(weights: Mapping[Cell, int]) -> Iterator[Cell]:
    """Endlessly, each cell as often as its weight says, spread as evenly as can be (smooth weighted
    round robin); ties go to the earlier cell.

    Weights {x: 2, y: 1} give x y x x y x …; equal weights give the plain round.
    """
    shares = {cell: weight // math.gcd(*weights.values()) for cell, weight in weights.items()}
    credit = dict.fromkeys(weights, 0)
    period: list[Cell] = []  # after as many cells as the shares sum to, every credit is 0 again
    for _ in range(sum(shares.values())):
        for cell, share in shares.items():
            credit[cell] += share
        chosen = max(credit, key=credit.__getitem__)
        credit[chosen] -= sum(shares.values())
        period.append(chosen)
    return cycle(period)


@dataclass(frozen=True, slots=True)
class Draft:
    """A task before it has its identity."""

    text: str
    entities: tuple[str, ...]
    tools: tuple[str, ...]
    gold: Gold


def task_of(draft: Draft, cell: Cell, side_label: str, *, split: Split, template: str, system: str) -> Task:
    """The finished task. Its id leaves out the system text, which may be reworded."""
    labels, goal = cell.labels(side_label), draft.gold.to_json()
    content = [labels, split, template, draft.text, draft.entities, draft.tools, goal]
    text = json.dumps(content, sort_keys=True, ensure_ascii=False)
    return Task(
        task_id=hashlib.sha256(text.encode()).hexdigest()[:16],
        split=split,
        messages=(Message("system", system), Message("user", draft.text)),
        tools=draft.tools,
        labels=labels,
        goal=goal,
        template=template,
        entities=draft.entities,
    )


def offered(all_tools: Iterable[str], count: int, rng: random.Random) -> set[str]:
    """`count` of the tools (all where there are fewer), drawn by name: a tool that is added to the
    world changes the draw of those tasks alone that come to offer it."""
    token = rng.getrandbits(64)
    return set(sorted(all_tools, key=lambda name: hashlib.sha256(f"{token}/{name}".encode()).digest())[:count])
