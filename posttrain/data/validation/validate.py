"""Validates demonstrations: rows that break a rule are quarantined with their reasons, and too many
of them are refused.

The file is read in batches; of each batch only the bad rows, the counts and 16 bytes per trajectory
are kept.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from posttrain.data.files import rows_at
from posttrain.data.schemas import labels_from_text
from posttrain.data.validation.flat import FlatTables
from posttrain.data.validation.leakage import held_out_of
from posttrain.data.validation.rules import Rule, RuleResult, Seen, broken, check_batch, make_expectations, rules
from posttrain.data.validation.suite import SuiteResult
from posttrain.runtime.batch_workers import map_batches
from posttrain.runtime.exits import DataError

_MAX_SHARES = 100  # of a label


@dataclass(frozen=True, slots=True)
class Reason:
    """A rule that a trajectory broke, and the agent's turns (from 0) that did; no turns where the
    rule is about the whole trajectory."""

    rule: str
    turns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Validation:
    """Results for a file: `is_kept` and `tokens_estimate`, shape (N,); `reasons` by the position of
    each trajectory that is not kept; `checked`, the counts of each rule; `suite`, a person's own
    expectations; `labels` and `tools`, how often the labels of a task (as JSON) and calls of a tool
    occur."""

    is_kept: NDArray[np.bool_]
    reasons: Mapping[int, tuple[Reason, ...]]
    checked: Sequence[RuleResult]
    num_turns: int
    num_calls: int
    tokens_estimate: NDArray[np.int64]
    suite: SuiteResult = SuiteResult()  # noqa: RUF009  # frozen
    labels: Mapping[str, int] = field(default_factory=dict)
    tools: Mapping[str, int] = field(default_factory=dict)

    @property
    def quarantined_frac(self) -> float:
        return len(self.reasons) / len(self.is_kept)

    def counts(self) -> dict[str, int]:
        """Quarantined trajectories by reason, the most frequent first; one with two reasons counts
        under both."""
        counts = Counter(reason.rule for reasons in self.reasons.values() for reason in reasons)
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def validate(
    batches: Iterable[pa.Table],
    tasks: Iterable[pa.Table],
    *,
    max_tokens: int,
    source: Path,
    suite: SuiteResult | None = None,
) -> Validation:
    """Check every row of `batches` (TRAJECTORIES_SCHEMA) by all rules, with equal results whatever
    the batches' sizes; `tasks` (with TASK_COLUMNS) are those of all splits, and what breaks the
    `suite` is bad, too. Raises DataError where there are no rows."""
    suite = suite or SuiteResult()
    all_rules, held_out, seen = rules(max_tokens=max_tokens), held_out_of(tasks), Seen()
    check = make_expectations(all_rules)
    checked: list[RuleResult] = []
    reasons: dict[int, tuple[Reason, ...]] = {}
    tokens: list[NDArray[np.int64]] = []
    labels, tools = Counter[str](), Counter[str]()
    num_rows = num_turns = num_calls = 0
    for batch in map_batches(check_batch, held_out, batches):
        flat = batch.after(seen)
        found = check(flat)
        checked = [before + now for before, now in zip(checked, found, strict=True)] if checked else found
        reasons |= {num_rows + row: those for row, those in _reasons(all_rules, flat).items()}
        tokens.append(flat["trajectories"]["tokens_estimate"].to_numpy())
        labels.update(batch.labels)
        tools.update(flat["calls"]["name"].to_pylist())
        num_rows += flat["trajectories"].num_rows
        num_turns, num_calls = num_turns + flat["turns"].num_rows, num_calls + flat["calls"].num_rows
    if num_rows == 0:
        raise DataError(
            f"{source} holds 0 demonstrations: there is nothing to learn from; look at what generate_data read, "
            "or at world.num_sft_tasks"
        )
    for row, names in suite.broken.items():
        reasons[row] = (*reasons.get(row, ()), *(Reason(name, ()) for name in names))
    reasons = {row: reasons[row] for row in sorted(reasons)}
    is_kept = np.ones(num_rows, bool)
    is_kept[list(reasons)] = False
    return Validation(is_kept, reasons, checked, num_turns, num_calls, np.concatenate(tokens), suite, labels, tools)


def refuse_too_many(validation: Validation, *, max_quarantine_frac: float, source: Path) -> None:
    """Raises DataError with each reason's count where more than the accepted share, or all, is
    bad, or where the whole is not as an expectation wants it."""
    if stops := [one for one in validation.suite.expected if one.stops]:
        told = "; ".join(f"{one.name} ({one.observed or 'not met'})" for one in stops)
        raise DataError(
            f"{source} is not as data/expectations.json wants it: {told}. Mend the source or the expectation"
        )
    frac = validation.quarantined_frac
    if frac <= max_quarantine_frac and frac < 1:
        return
    by_reason = ", ".join(f"{rule} {count}" for rule, count in validation.counts().items())
    raise DataError(
        f"{len(validation.reasons)} of {len(validation.is_kept)} demonstrations in {source} ({frac:.1%}) break a rule, "
        f"validate_data.max_quarantine_frac accepts {max_quarantine_frac:.1%}. By reason: {by_reason}. "
        "What is left would be another data set than the one that was meant: look at quarantine.jsonl, "
        "then mend the source or raise the share"
    )


def quarantined(validation: Validation, batches: Iterable[pa.Table]) -> Iterator[dict[str, Any]]:
    """One object per bad trajectory, in the file's order: `position`, `reasons`, and the whole
    `row`, so that it can be mended and put back. `batches` are the rows that were validated."""
    positions = sorted(validation.reasons)
    rows = (row for table in rows_at(batches, np.array(positions, np.int64)) for row in table.to_pylist())
    for position, row in zip(positions, rows, strict=True):
        reasons = [{"rule": reason.rule, "turns": list(reason.turns)} for reason in validation.reasons[position]]
        yield {"position": position, "reasons": reasons, "row": row}


def kept(validation: Validation, batches: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The good rows of the batches that were validated."""
    start = 0
    for batch in batches:
        yield batch.filter(pa.array(validation.is_kept[start : start + batch.num_rows]))
        start += batch.num_rows


def summary(validation: Validation) -> dict[str, Any]:
    """Figures for summary.json."""
    tokens = np.percentile(validation.tokens_estimate, [0, 50, 95, 100], method="nearest")
    return {
        "num_demonstrations": len(validation.is_kept),
        "num_kept": int(validation.is_kept.sum()),
        "num_quarantined": len(validation.reasons),
        "quarantined_frac": round(validation.quarantined_frac, 6),
        "num_turns": validation.num_turns,
        "num_calls": validation.num_calls,
        "quarantined_by_rule": validation.counts(),
        "expectations_not_met": {one.name: one.severity for one in validation.suite.expected if not one.is_met},
        "tokens_estimate": dict(zip(("min", "median", "p95", "max"), map(int, tokens), strict=True)),
        "labels": _label_shares(validation.labels),
        "tools": _shares(validation.tools),
    }


def _label_shares(counts: Mapping[str, int]) -> dict[str, dict[str, float]]:
    by_label: dict[str, Counter[str]] = {}
    for text, count in counts.items():
        for label, value in labels_from_text(text).items():
            by_label.setdefault(label, Counter())[value] += count
    return {label: _shares(own) for label, own in sorted(by_label.items())}


def _shares(counts: Mapping[str, int]) -> dict[str, float]:
    """The hundred most frequent; an import may have a value for each row."""
    total, most = sum(counts.values()), Counter(counts).most_common(_MAX_SHARES)
    return {str(name): round(count / total, 6) for name, count in sorted(most)}


def _reasons(all_rules: Sequence[Rule], flat: FlatTables) -> dict[int, tuple[Reason, ...]]:
    reasons: dict[int, list[Reason]] = {}
    for rule in all_rules:
        found = broken(rule, flat)
        turns: dict[int, set[int]] = {row: set() for row in found["row"].to_pylist()}
        if "turn" in found.column_names:
            for row, turn in zip(found["row"].to_pylist(), found["turn"].to_pylist(), strict=True):
                turns[row].add(turn)
        for row, where in turns.items():
            reasons.setdefault(row, []).append(Reason(rule.name, tuple(sorted(where))))
    return {row: tuple(reasons[row]) for row in sorted(reasons)}
