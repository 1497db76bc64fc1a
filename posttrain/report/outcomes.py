"""Who won which task, kept with the figures of an arm: what a paired verdict is made of."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posttrain.evals.significance import Outcomes
from posttrain.report.sources import held_out_outcomes


def read_outcomes(tree: Path, policy: str, *, is_strict: bool = False) -> dict[str, float]:
    """Success by held-out task, or strict success. Raises OSError where the policy was not
    evaluated there."""
    text = (tree / "reports" / "evaluate" / f"{policy}.tasks.jsonl").read_text(encoding="utf-8")
    return held_out_outcomes(text, is_strict=is_strict)


def packed(outcomes: Outcomes) -> dict[str, str]:
    """A line for a file of figures: `won` has a digit for each task in the order of their hashes,
    and `tasks` names them all."""
    names = sorted(outcomes)
    digest = hashlib.md5("\n".join(names).encode(), usedforsecurity=False).hexdigest()
    return {"tasks": digest, "won": "".join(f"{outcomes[name]:.0f}" for name in names)}


def unpacked(arm: Mapping[str, Any]) -> dict[str, float]:
    """Success by task, of which the names are the same in all arms that played them. Empty of
    figures from before they were packed."""
    return {f"{arm['tasks']}-{place}": float(won) for place, won in enumerate(arm.get("won", ""))}
