"""The two sides of a lookup world: the same tools twice, under twin names, for entities that may be
on both. Taking the wrong side is the mistake that RL has to unlearn there."""

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sides:
    """The names of a world's two sides. `label` is the task's label that says which one it is
    about; tools of the side `marked` have that word as the second part of their name
    (`get_b_price`), those of `home` lack it (`get_price`).

    `words` is how a short reasoning settles on a side, by (side, language), and `stated` finds it
    again: a pattern with the groups `home` and `marked`.
    """

    label: str
    home: str
    marked: str
    words: Mapping[tuple[str, str], str]
    stated: re.Pattern[str]

    def is_marked(self, tool: str) -> bool:
        """True for a tool of the marked side, by its name alone: an unknown tool has a side,
        too."""
        return self.marked in tool.split("_")

    def side_of(self, tool: str) -> str:
        return self.marked if self.is_marked(tool) else self.home

    def without_mark(self, tool: str) -> str:
        """The common name of both twins."""
        return "_".join(part for part in tool.split("_") if part != self.marked)

    def twin(self, tool: str) -> str:
        """The same tool of the other side: `get_price` is `get_b_price`, and the other way
        round."""
        if self.is_marked(tool):
            return self.without_mark(tool)
        verb, _, rest = tool.partition("_")
        return f"{verb}_{self.marked}_{rest}"

    def stated_in(self, reasoning: str) -> str | None:
        """The side that a reasoning settles on, the last one where it names several; None where it
        names none."""
        found = [match.lastgroup for match in self.stated.finditer(reasoning)]
        if not found:
            return None
        return self.home if found[-1] == "home" else self.marked
