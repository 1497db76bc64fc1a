"""Which trajectories go on and which go to quarantine, with their reasons; and when there are so
many bad ones that the source must be mended.

The file is judged in batches: of each only its bad rows, its counts and 16 bytes per trajectory are
kept.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from posttrain.data.files import taken
from posttrain.data.validation.expectations import Checked, expectations_of, together
from posttrain.data.validation.leakage import held_out_of
from posttrain.data.validation.rules import Judged, Rule, Seen, broken, judge, rules
from posttrain.runtime.exits import DataError


@dataclass(frozen=True, slots=True)
class Reason:
    """One rule that a trajectory broke. `turns` are the agent's turns where it did, from 0; empty
    where the rule speaks of the whole trajectory."""

    rule: str
    turns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """`is_kept`, shape (N,); `reasons` by the position in the file of each trajectory that is not
    kept."""

    is_kept: NDArray[np.bool_]
    reasons: Mapping[int, tuple[Reason, ...]]
    checked: Sequence[Checked]
    num_turns: int
    num_calls: int
    tokens_estimate: NDArray[np.int64]

    @property
    def quarantined_frac(self) -> float:
        return len(self.reasons) / len(self.is_kept)

    def counts(self) -> dict[str, int]:
        """Quarantined trajectories by reason, the most frequent first; one with two reasons counts
        under both."""
        counts = Counter(reason.rule for reasons in self.reasons.values() for reason in reasons)
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def validate(batches: Iterable[pa.Table], tasks: Iterable[pa.Table], *, max_tokens: int, source: Path) -> Verdict:
    """Judge every row of `batches` (TRAJECTORIES_SCHEMA), the same whatever their sizes; `tasks`
    (with TASK_COLUMNS) are those of all splits. Raises DataError where there are no rows."""
    all_rules, held_out, seen = rules(max_tokens=max_tokens), held_out_of(tasks), Seen()
    check = expectations_of(all_rules)
    checked: list[list[Checked]] = []
    reasons: dict[int, tuple[Reason, ...]] = {}
    tokens: list[NDArray[np.int64]] = []
    num_rows = num_turns = num_calls = 0
    for batch in batches:
        judged = judge(batch, held_out, seen)
        checked = [together([*checked, check(judged)])]
        reasons |= {num_rows + row: those for row, those in _reasons(all_rules, judged).items()}
        tokens.append(judged["trajectories"]["tokens_estimate"].to_numpy())
        num_rows += batch.num_rows
        num_turns, num_calls = num_turns + judged["turns"].num_rows, num_calls + judged["calls"].num_rows
    if num_rows == 0:
        raise DataError(
            f"{source} holds 0 demonstrations: there is nothing to learn from; look at what generate_data read, "
            "or at world.num_sft_tasks"
        )
    is_kept = np.ones(num_rows, bool)
    is_kept[list(reasons)] = False
    return Verdict(is_kept, reasons, checked[0], num_turns, num_calls, np.concatenate(tokens))


def refuse_too_many(verdict: Verdict, *, max_quarantine_frac: float, source: Path) -> None:
    """Raises DataError with the count of every reason where more than the accepted share, or all,
    is bad."""
    frac = verdict.quarantined_frac
    if frac <= max_quarantine_frac and frac < 1:
        return
    by_reason = ", ".join(f"{rule} {count}" for rule, count in verdict.counts().items())
    raise DataError(
        f"{len(verdict.reasons)} of {len(verdict.is_kept)} demonstrations in {source} ({frac:.1%}) break a rule, "
        f"validate_data.max_quarantine_frac accepts {max_quarantine_frac:.1%}. By reason: {by_reason}. "
        "What is left would be another data set than the one that was meant: look at quarantine.jsonl, "
        "then mend the source or raise the share"
    )


def quarantined(verdict: Verdict, batches: Iterable[pa.Table]) -> Iterator[dict[str, Any]]:
    """One object per bad trajectory, in the file's order: `position`, `reasons`, and the whole
    `row`, so that it can be mended and put back. `batches` are the rows that were judged."""
    positions = sorted(verdict.reasons)
    rows = (row for table in taken(batches, np.array(positions, np.int64)) for row in table.to_pylist())
    for position, row in zip(positions, rows, strict=True):
        reasons = [{"rule": reason.rule, "turns": list(reason.turns)} for reason in verdict.reasons[position]]
        yield {"position": position, "reasons": reasons, "row": row}


def kept(verdict: Verdict, batches: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The rows that go on, of the batches that were judged."""
    start = 0
    for batch in batches:
        yield batch.filter(pa.array(verdict.is_kept[start : start + batch.num_rows]))
        start += batch.num_rows


def summary(verdict: Verdict) -> dict[str, Any]:
    """The figures to commit: counts of rows, of every rule's failures, and the spread of the length
    estimate."""
    tokens = np.percentile(verdict.tokens_estimate, [0, 50, 95, 100], method="nearest")
    return {
        "num_demonstrations": len(verdict.is_kept),
        "num_kept": int(verdict.is_kept.sum()),
        "num_quarantined": len(verdict.reasons),
        "quarantined_frac": round(verdict.quarantined_frac, 6),
        "num_turns": verdict.num_turns,
        "num_calls": verdict.num_calls,
        "quarantined_by_rule": verdict.counts(),
        "tokens_estimate": dict(zip(("min", "median", "p95", "max"), map(int, tokens), strict=True)),
    }


def _reasons(all_rules: Sequence[Rule], judged: Judged) -> dict[int, tuple[Reason, ...]]:
    reasons: dict[int, list[Reason]] = {}
    for rule in all_rules:
        found = broken(rule, judged)
        turns: dict[int, set[int]] = {row: set() for row in found["row"].to_pylist()}
        if "turn" in found.column_names:
            for row, turn in zip(found["row"].to_pylist(), found["turn"].to_pylist(), strict=True):
                turns[row].add(turn)
        for row, where in turns.items():
            reasons.setdefault(row, []).append(Reason(rule.name, tuple(sorted(where))))
    return {row: tuple(reasons[row]) for row in sorted(reasons)}
