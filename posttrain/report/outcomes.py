"""Who won which task, kept with the figures of an arm: what a paired verdict is made of."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posttrain.evals.significance import Outcomes
from posttrain.report.sources import held_out_outcomes, held_out_samples


def read_outcomes(tree: Path, policy: str, *, is_strict: bool = False) -> dict[str, float]:
    """Greedy success by held-out task, or strict success. Raises OSError where the policy was not
    evaluated there."""
    return held_out_outcomes(_plays(tree, policy), is_strict=is_strict)


def read_samples(tree: Path, policy: str) -> dict[str, float]:
    """By held-out task the share of its sampled plays that succeeded. Raises OSError as above."""
    return held_out_samples(_plays(tree, policy))


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


def _plays(tree: Path, policy: str) -> str:
    return (tree / "reports" / "evaluate" / f"{policy}.tasks.jsonl").read_text(encoding="utf-8")
