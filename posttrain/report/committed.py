"""Holds each policy's success against the interval committed at HEAD, which says how much of a
difference is chance."""

import json
from dataclasses import dataclass
from pathlib import Path

from posttrain.exits import DataError
from posttrain.pipeline.git import file_at
from posttrain.report.sources import Evaluation
from posttrain.report.table import interval, percent, read_evaluations


@dataclass(frozen=True, slots=True)
class Comparison:
    """One policy. `committed` is None where HEAD has no evaluation of it: nothing to compare with,
    so nothing is wrong."""

    policy: str
    now: Evaluation
    committed: Evaluation | None

    @property
    def verdict(self) -> str:
        """`as committed`, `within`, `OUTSIDE` of the interval, or `new`."""
        if self.committed is None:
            return "new"
        if self.now == self.committed:
            return "as committed"
        return "within" if self.committed.ci_low <= self.now.success_rate <= self.committed.ci_high else "OUTSIDE"


def compare_all(root: Path, reports: Path) -> list[Comparison]:
    """Every policy's. `reports` is relative to `root`. Raises DataError where an evaluation is
    missing or broken."""
    return [
        Comparison(policy, now, _committed(root, reports / "evaluate" / f"{policy}.json"))
        for policy, now in read_evaluations(root / reports).items()
    ]


def comparison_markdown(comparisons: list[Comparison]) -> str:
    """A row per policy."""
    rows = ["| policy | success | committed | its interval | verdict |", "| --- | ---: | ---: | ---: | --- |"]
    for one in comparisons:
        committed = f"{percent(one.committed.success_rate)} | {interval(one.committed)}" if one.committed else " | "
        rows.append(f"| {one.policy} | {percent(one.now.success_rate)} | {committed} | {one.verdict} |")
    return "\n".join(rows) + "\n"


def _committed(root: Path, path: Path) -> Evaluation | None:
    text = file_at(root, "HEAD", path.as_posix())
    if text is None:
        return None
    try:
        return Evaluation.model_validate(json.loads(text))
    except ValueError as error:
        raise DataError(f"{path} at HEAD is not an evaluation ({error}); commit one that `dvc repro` wrote") from error
