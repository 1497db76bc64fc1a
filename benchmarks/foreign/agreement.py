"""Counts how often our grader and the world's own agree on an episode."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Agreement:
    """Counted over plays. `gold_ok`: gold plays that both graders call a success. `accepted`: those
    mutated plays that theirs calls one; were it none or all, agreement would say little."""

    num_gold: int = 0
    gold_ok: int = 0
    num_mutated: int = 0
    agree: int = 0
    accepted: int = 0
    by_kind: dict[str, Counter[str]] = field(default_factory=dict)
    differences: list[str] = field(default_factory=list)

    def add_gold(self, name: str, *, ours: bool, theirs: bool) -> None:
        """One gold play with both verdicts."""
        self.num_gold += 1
        self.gold_ok += ours and theirs
        if not (ours and theirs):
            self.differences.append(f"{name}: gold, ours {ours}, theirs {theirs}")

    def add_mutated(self, name: str, kind: str, *, ours: bool, theirs: bool) -> None:
        """One mutated play with both verdicts."""
        self.num_mutated += 1
        self.agree += ours == theirs
        self.accepted += theirs
        self.by_kind.setdefault(kind, Counter()).update(plays=1, accepted=theirs, agree=ours == theirs)
        if ours != theirs:
            self.differences.append(f"{name}: {kind}, ours {ours}, theirs {theirs}")
