"""In which order the cells of a split come: balanced at every length, and a longer list begins with
the shorter one.

A task's identity is here too: the hash of its content, which is the same on every branch as long as
the question is.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import cycle

from posttrain.types import Gold, Kind, Message, Split, Task


@dataclass(frozen=True, slots=True)
class Cell:
    """What the tasks of a split are balanced over."""

    kind: Kind
    market: str
    language: str
    difficulty: int


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
    """A task before it has its identity: what a family of tasks makes."""

    text: str
    companies: tuple[str, ...]
    tools: tuple[str, ...]
    gold: Gold


def task_of(draft: Draft, cell: Cell, *, split: Split, template: str, system: str) -> Task:
    """The finished task. Its id leaves out the system text: a policy text that was reworded asks
    the same question."""
    gold = draft.gold
    calls = [[call.name, dict(call.arguments), call.holds_answer] for call in gold.calls]
    wanted = [gold.answer.type, str(gold.answer.value), gold.answer.unit, calls, gold.asks]
    content = [
        cell.kind,
        cell.market,
        cell.language,
        cell.difficulty,
        split,
        template,
        draft.text,
        draft.companies,
        draft.tools,
        wanted,
    ]
    text = json.dumps(content, sort_keys=True, ensure_ascii=False)
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
