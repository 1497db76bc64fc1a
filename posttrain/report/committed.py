"""Holds each policy's success against the figure committed at HEAD, and says how much of a
difference is chance.

On one kind of processor a run gives the same bytes, so that what differs was changed, and the
committed interval says whether by more than the choice of tasks. Another kind rounds some sums
otherwise, and from there single episodes and the training go other ways: as far as two seeds of one
machine lie apart, which is more than the interval of one run knows.
"""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from posttrain.exits import ConfigurationError, DataError
from posttrain.pipeline.git import file_at, git
from posttrain.report.sources import Evaluation, SeedArms, read_object
from posttrain.report.table import percent, percent_range, read_evaluations

_Z = 1.96  # of 95 %


@dataclass(frozen=True, slots=True)
class Comparison:
    """One policy. `committed` is None where HEAD has no evaluation of it: nothing to compare with,
    so nothing is wrong. `seed_rates` are the committed success rates of other seeds, empty where
    there are none."""

    policy: str
    now: Evaluation
    committed: Evaluation | None
    seed_rates: Sequence[float] = ()

    @property
    def is_of_another_processor(self) -> bool:
        """Whether both say which kind computed them, and these differ."""
        if self.committed is None or "" in (self.committed.processor, self.now.processor):
            return False
        return self.committed.processor != self.now.processor

    @property
    def bounds(self) -> tuple[float, float]:
        """What the figure may be by chance: the committed interval; on another kind of processor as
        far from the committed figure as 95 % of pairs of seeds lie apart, 1.96 √2 standard
        deviations over seeds. Raises ValueError where nothing is committed."""
        then = self.committed
        if then is None:
            raise ValueError(f"no evaluation of {self.policy} is committed")
        if not self.is_of_another_processor or len(self.seed_rates) < 2:
            return then.ci_low, then.ci_high
        apart = _Z * math.sqrt(2) * statistics.stdev(self.seed_rates)
        return max(0.0, then.success_rate - apart), min(1.0, then.success_rate + apart)

    @property
    def verdict(self) -> str:
        """`as committed`, `within`, `OUTSIDE` of the bounds, or `new`."""
        if self.committed is None:
            return "new"
        if self.now == self.committed.model_copy(update={"processor": self.now.processor}):
            return "as committed"
        low, high = self.bounds
        return "within" if low <= self.now.success_rate <= high else "OUTSIDE"

    @property
    def sentence(self) -> str:
        """For a person, with the figures and where the bounds come from."""
        if self.committed is None:
            return f"No evaluation of the {self.policy} is committed at HEAD to compare with."
        now, then = percent(self.now.success_rate), percent(self.committed.success_rate)
        if self.verdict == "as committed":
            return f"{self.policy}: {now}, as committed."
        if not self.is_of_another_processor:
            where = f"{self.verdict} the committed interval {percent_range(*self.bounds)}"
            return f"{self.policy}: {now}, {where} (committed: {then})."
        return (
            f"{self.policy}: {now}, and {then} is committed, of another kind of processor ({self.committed.processor}; "
            f"here: {self.now.processor}): figures differ by rounding. "
            f"It is {self.verdict} {percent_range(*self.bounds)}, as far as two seeds on one machine lie apart."
        )


def compare_all(root: Path, reports: Path) -> list[Comparison]:
    """Every policy's. `reports` is relative to `root`. Raises DataError where an evaluation is
    missing or broken."""
    evaluations = read_evaluations(root / reports)
    return _compare(root / reports, evaluations)


def compare_with_committed(reports_dir: Path) -> str:
    """The policy's sentence. Raises DataError where its evaluation is missing or broken."""
    now = read_object(reports_dir / "evaluate" / "policy.json", Evaluation)
    [policy] = _compare(reports_dir, {"policy": now})
    return policy.sentence


def whose_figures(reports_dir: Path) -> str:
    """A sentence that names their commit where no stage has made a page of these evaluations here
    and they are those at HEAD; else how the policy compares with those."""
    try:
        commit = git(reports_dir, "log", "-1", "--format=%h (%cs)", "--", "evaluate")
        is_edited = bool(git(reports_dir, "status", "--porcelain", "--", "evaluate"))
    except ConfigurationError:  # no repository, or no commit yet
        commit, is_edited = "", False
    if (reports_dir / "index.html").exists() or not commit or is_edited:
        return compare_with_committed(reports_dir)
    return f"These are the committed figures, of {commit}: nothing has run in this tree yet."


def comparison_markdown(comparisons: list[Comparison]) -> str:
    """A row per policy."""
    rows = ["| policy | success | committed | may be | verdict |", "| --- | ---: | ---: | ---: | --- |"]
    for one in comparisons:
        committed = f"{percent(one.committed.success_rate)} | {percent_range(*one.bounds)}" if one.committed else " | "
        rows.append(f"| {one.policy} | {percent(one.now.success_rate)} | {committed} | {one.verdict} |")
    return "\n".join(rows) + "\n"


def _compare(reports_dir: Path, evaluations: Mapping[str, Evaluation]) -> list[Comparison]:
    seeds = reports_dir / "seeds.json"
    arms = read_object(seeds, SeedArms).root.values() if seeds.exists() else ()
    of_seeds = [arm.policies for arm in arms if set(arm.overrides) == {"seed"}]
    return [
        Comparison(
            policy,
            now,
            _committed(reports_dir, policy),
            [policies[policy].success_rate for policies in of_seeds if policy in policies],
        )
        for policy, now in evaluations.items()
    ]


def _committed(reports_dir: Path, policy: str) -> Evaluation | None:
    text = file_at(reports_dir, "HEAD", f"evaluate/{policy}.json")
    if text is None:
        return None
    try:
        return Evaluation.model_validate(json.loads(text))
    except ValueError as error:
        raise DataError(
            f"reports/evaluate/{policy}.json at HEAD is not an evaluation ({error}); commit one that `dvc repro` wrote"
        ) from error
