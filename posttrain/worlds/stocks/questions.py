"""The table of questions: which are asked in each cell, and how often. It makes a task easy or
hard.

The traps are placed here. Most companies named with a Hong Kong cue are listed in both markets; a
name with a second spelling is known under only one of the two; Bollinger and MACD are asked as
often as each other.

Levels 1 and 2 ask for few fields and compare signs only: binding a value to its field is learnt
once for each field, and comparing digits takes a small model longer than everything else together.
"""

import random
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

from posttrain.worlds.lookups.schedule import Cell
from posttrain.worlds.stocks.fields import (
    AVERAGES,
    BANDS,
    BAR_FIELDS,
    BASIC_FIELDS,
    MOMENTUM,
    PRICES,
    QUOTE_FIELDS,
    RATIOS,
    VOLUMES,
)
from posttrain.worlds.stocks.phrasing import FRAMES, Group

# How the company is named: by code; with its market said outright or by exchange or currency; under
# two spellings of which one is unknown; without any word on the market (it is listed in one only);
# as listed in both without saying which is meant; or plainly, where nothing must be looked up.
Reference: TypeAlias = Literal["code", "cue", "indirect", "two_names", "no_cue", "both", "plain"]


@dataclass(frozen=True, slots=True)
class Question:
    """A question, whichever company it is about; a task carries its `template`."""

    family: str
    field: str
    reference: Reference
    group: Group
    phrase: int  # the frame's index in the group

    @property
    def template(self) -> str:
        return f"{self.family}/{self.field}/{self.reference}/{self.group}{self.phrase}"

    @property
    def is_comparison(self) -> bool:
        return self.family not in ("field", "bar")

    @classmethod
    def from_template(cls, template: str) -> "Question":
        family, field, reference, phrase = template.split("/")
        group = phrase.rstrip("0123456789")
        return cls(family, field, cast(Reference, reference), cast(Group, group), int(phrase.removeprefix(group)))


@dataclass(frozen=True, slots=True)
class Choice:
    """One line of the menu, drawn by its weight, with each of its fields alike."""

    weight: int
    family: str
    reference: Reference
    fields: tuple[str, ...]


_BASIC_OTHERS = ("ma20", "trend", "lot_size")
_OTHERS = (*AVERAGES, *VOLUMES, "lot_size", *RATIOS)

_MENU: dict[tuple[str, int], tuple[Choice, ...]] = {
    ("tool_selection", 1): (Choice(3, "field", "code", BASIC_FIELDS), Choice(7, "field", "cue", BASIC_FIELDS)),
    ("tool_selection", 2): (
        Choice(2, "field", "cue", MOMENTUM),
        Choice(2, "field", "cue", BANDS),
        Choice(1, "field", "cue", ("ma20",)),
        Choice(2, "field", "indirect", BASIC_FIELDS),
        Choice(6, "field", "two_names", BASIC_FIELDS),
    ),
    ("tool_selection", 3): (
        Choice(3, "field", "no_cue", QUOTE_FIELDS),
        Choice(2, "bar", "code", BAR_FIELDS),
        Choice(2, "bar", "cue", BAR_FIELDS),
        Choice(1, "field", "indirect", (*MOMENTUM, *BANDS)),
    ),
    ("multi_step_planning", 1): (Choice(1, "higher", "code", ("change_pct",)),),
    ("multi_step_planning", 2): (Choice(1, "higher", "cue", ("change_pct",)),),
    ("multi_step_planning", 3): (
        Choice(1, "higher", "cue", ("price", "pe", "pb")),
        Choice(2, "second", "code", ("price", "pe", "pb", "change_pct")),
        Choice(1, "lower", "indirect", ("price", "pe", "pb", "change_pct")),
        Choice(2, "difference", "cue", ("price", "high", "low")),
    ),
    ("timing_decision", 1): (Choice(3, "given", "plain", PRICES), Choice(2, "field", "both", BASIC_FIELDS)),
    ("timing_decision", 2): (Choice(2, "given_two", "plain", PRICES), Choice(3, "field", "both", BASIC_FIELDS)),
    ("timing_decision", 3): (
        Choice(1, "given_two", "plain", PRICES),
        Choice(2, "field", "both", (*MOMENTUM, *BANDS, *AVERAGES)),
    ),
    ("tool_retrieval", 1): (
        Choice(2, "field", "code", MOMENTUM),
        Choice(2, "field", "code", BANDS),
        Choice(2, "field", "code", _BASIC_OTHERS),
        Choice(3, "field", "cue", _BASIC_OTHERS),
    ),
    ("tool_retrieval", 2): (
        Choice(3, "field", "cue", MOMENTUM),
        Choice(3, "field", "cue", BANDS),
        Choice(3, "field", "cue", _BASIC_OTHERS),
        Choice(2, "field", "two_names", _BASIC_OTHERS),
    ),
    ("tool_retrieval", 3): (
        Choice(1, "field", "no_cue", (*MOMENTUM, *BANDS, *_OTHERS)),
        Choice(1, "field", "two_names", (*MOMENTUM, *BANDS)),
        Choice(1, "field", "indirect", (*MOMENTUM, *BANDS, *_OTHERS)),
    ),
}
# Prices in two currencies are not compared; a change in percent or a multiple is.
_ACROSS_MARKETS: dict[int, tuple[Choice, ...]] = {
    1: (Choice(1, "higher", "code", ("change_pct",)),),
    2: (Choice(1, "higher", "cue", ("change_pct",)),),
    3: (
        Choice(2, "pair", "plain", RATIOS),
        Choice(1, "lower", "cue", (*RATIOS, "change_pct")),
        Choice(1, "second", "code", RATIOS),
    ),
}
_STOPS = (Choice(4, "stop", "plain", ("none",)), Choice(1, "ending", "plain", ("none",)))


def menu(cell: Cell) -> tuple[Choice, ...]:
    if cell.side == "both":
        return _ACROSS_MARKETS[cell.difficulty]
    return _STOPS if cell.side == "none" else _MENU[cell.kind, cell.difficulty]


def draw_question(cell: Cell, rng: random.Random, *, group: Group, num_wordings: int) -> Question:
    """One question of a cell's menu in one of its phrasings."""
    choices = menu(cell)
    (choice,) = rng.choices(choices, weights=[choice.weight for choice in choices])
    num_phrases = len(FRAMES[choice.family, cell.language].of(group, num_wordings))
    return Question(choice.family, rng.choice(choice.fields), choice.reference, group, rng.randrange(num_phrases))
