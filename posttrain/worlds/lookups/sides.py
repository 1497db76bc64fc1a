"""The two sides of a lookup world: the same tools twice, under twin names, for entities that may be
on both. Taking the wrong side is the mistake that RL has to unlearn there."""

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sides:
    """`label` is the task's label that says which side it is about; tools of the side `marked` have
    that word as the second part of their name (`get_b_price`), those of `home` lack it
    (`get_price`). `words` is how a short reasoning settles on a side, by (side, language), and
    `stated` finds it again: a pattern with the groups `home` and `marked`."""

    label: str
    home: str
    marked: str
    words: Mapping[tuple[str, str], str]
    stated: re.Pattern[str]

    def is_marked(self, tool: str) -> bool:
        """By the name alone: an unknown tool has a side, too."""
        return self.marked in tool.split("_")

    def side_of(self, tool: str) -> str:
        return self.marked if self.is_marked(tool) else self.home

    def without_mark(self, tool: str) -> str:
        return "_".join(part for part in tool.split("_") if part != self.marked)

    def twin(self, tool: str) -> str:
        """The same tool of the other side: `get_price` is `get_b_price`, and vice versa."""
        if self.is_marked(tool):
            return self.without_mark(tool)
        verb, _, rest = tool.partition("_")
        return f"{verb}_{self.marked}_{rest}"

    def stated_in(self, reasoning: str) -> str | None:
        """The last side that a reasoning names; None where it names none."""
        found = [match.lastgroup for match in self.stated.finditer(reasoning)]
        if not found:
            return None
        return self.home if found[-1] == "home" else self.marked
