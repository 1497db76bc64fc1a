"""In which order the cells of a split come: balanced at every length, and a longer list begins with the shorter one.

A task's identity is here too: the hash of its content, which is the same on every branch as long as the question is.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from decimal import Decimal
from itertools import repeat
from typing import Any

from posttrain.types import Gold, Kind, Message, Split, Task


@dataclass(frozen=True, slots=True)
class Cell:
    """What the tasks of a split are balanced over."""

    kind: Kind
    market: str
    language: str
    difficulty: int


def cells_in_turn(weights: Mapping[Cell, int]) -> Iterator[Cell]:
    """Endlessly, each cell as often as its weight says, spread as evenly as can be (smooth weighted round robin); ties go to the earlier cell.

    Weights {x: 2, y: 1} give x y x x y x …; equal weights give the plain round.
    """
    total = sum(weights.values())
    credit = dict.fromkeys(weights, 0)
    for _ in repeat(None):
        for cell, weight in weights.items():
            credit[cell] += weight
        chosen = max(credit, key=credit.__getitem__)
        credit[chosen] -= total
        yield chosen


@dataclass(frozen=True, slots=True)
class Draft:
    """A task before it has its identity: what a family of tasks makes."""

    text: str
    companies: tuple[str, ...]
    tools: tuple[str, ...]
    gold: Gold


def task_of(draft: Draft, cell: Cell, *, split: Split, template: str, system: str) -> Task:
    """The finished task. Its id leaves out the system text: a policy text that was reworded asks the same question."""
    content = {"cell": asdict(cell), "split": split, "template": template, "draft": asdict(draft)}
    text = json.dumps(content, sort_keys=True, ensure_ascii=False, default=_as_json)
    return Task(
        task_id=hashlib.sha256(text.encode()).hexdigest()[:16],
        kind=cell.kind,
        market=cell.market,
        language=cell.language,
        difficulty=cell.difficulty,
        split=split,
        template=template,
        messages=(Message("system", system), Message("user", draft.text)),
        tools=draft.tools,
        companies=draft.companies,
        gold=draft.gold,
    )


def _as_json(value: Any) -> Any:
    if isinstance(value, Decimal):
        return format(value, "f")
    raise TypeError(f"a task holds a {type(value).__name__}, which has no JSON form")
