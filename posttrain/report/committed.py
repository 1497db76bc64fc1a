"""Holds each policy's success against the figure committed at HEAD, and says whether they differ by
more than chance: strict success where both recorded it, else plain.

On one kind of processor a run gives the same bytes, so that what differs was changed. Another kind
rounds some sums otherwise, and from there single episodes and the training go other ways, as with
another seed. Both are asked as any two runs are: paired on tasks, with the spread over the seeds
that are committed (`posttrain.evals.significance`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from posttrain.evals.significance import (
    LEVEL,
    Verdict,
    corrected,
    difference,
    spread_over,
)
from posttrain.pipeline.git import file_at, git
from posttrain.report.arms import Arms
from posttrain.report.knobs import Knobs, parse_knobs
from posttrain.report.sources import Evaluation, held_out_outcomes, read_object
from posttrain.report.table import measure, percent, points, read_evaluations
from posttrain.runtime.exits import ConfigurationError, DataError


class Change(StrEnum):
    """What a figure is beside the committed one; what cannot be compared was changed too."""

    NEW = "new"
    AS_COMMITTED = "as committed"
    BY_CHANCE = "within chance"
    CHANGED = "CHANGED"
    OTHER_TASKS = "OTHER TASKS"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One policy. `committed` is None where HEAD has no evaluation of it: nothing to compare with,
    so nothing is wrong. `difference` is None where the two did not play the same tasks.
    `is_strict`: both recorded strict success, and that is compared; or the only one."""

    policy: str
    now: Evaluation
    committed: Evaluation | None
    difference: Verdict | None = None
    is_strict: bool = False

    @property
    def verdict(self) -> Change:
        if self.committed is None:
            return Change.NEW
        if self.now == self.committed.model_copy(update={"processor": self.now.processor}):
            return Change.AS_COMMITTED
        if self.difference is None:
            return Change.OTHER_TASKS
        return Change.CHANGED if self.difference.p_value < 1 - LEVEL else Change.BY_CHANCE

    @property
    def is_wrong(self) -> bool:
        """Whether what is committed is no longer so."""
        return self.verdict in (Change.CHANGED, Change.OTHER_TASKS)

    @property
    def sentence(self) -> str:
        """For a person, with the figures and what chance was taken to be."""
        if self.committed is None:
            return f"No evaluation of the {self.policy} is committed at HEAD to compare with."
        now = f"{measure(is_strict=self.is_strict)} {self.percent(self.now)}"
        then = self.percent(self.committed)
        match self.verdict:
            case Change.AS_COMMITTED:
                return f"{self.policy}: {now}, as committed."
            case Change.OTHER_TASKS:
                return f"{self.policy}: {now}, and {then} is committed, of OTHER TASKS: they cannot be compared."
        one = self.difference
        assert one is not None
        by = "more than" if self.verdict is Change.CHANGED else "no more than"
        chance = "the choice of tasks" if one.is_of_runs_only else "the choice of tasks and seeds"
        return (
            f"{self.policy}: {now}, and {then} is committed: {points(one.estimate, one.low, one.high)} points, "
            f"{by} {chance} does{self._on_which_processors}.{' It has CHANGED.' * self.is_wrong}"
        )

    def percent(self, evaluation: Evaluation) -> str:
        """Of what is compared."""
        rate = evaluation.strict if self.is_strict else None
        return percent((rate or evaluation.plain).share)

    @property
    def _on_which_processors(self) -> str:
        if self.committed is None or self.committed.processor in ("", self.now.processor) or not self.now.processor:
            return ""
        return (
            f" (another kind of processor rounds otherwise: {self.committed.processor} there, "
            f"{self.now.processor} here)"
        )


def compare_all(root: Path, reports: Path) -> list[Comparison]:
    """Every policy's, corrected as a family. `reports` is relative to `root`. Raises DataError
    where an evaluation is missing or broken."""
    return _compare(root / reports, read_evaluations(root / reports))


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
    rows = [
        "| policy | compared by | now | committed | difference, points | verdict |",
        "| --- | --- | ---: | ---: | ---: | --- |",
    ]
    for one in comparisons:
        by, now = measure(is_strict=one.is_strict), one.percent(one.now)
        committed = one.percent(one.committed) if one.committed else ""
        apart = points(one.difference.estimate, one.difference.low, one.difference.high) if one.difference else ""
        rows.append(f"| {one.policy} | {by} | {now} | {committed} | {apart} | {one.verdict} |")
    return "\n".join(rows) + "\n"


def _compare(reports_dir: Path, evaluations: Mapping[str, Evaluation]) -> list[Comparison]:
    seeds = reports_dir / "experiments" / "seeds.json"
    arms = read_object(seeds, Arms) if seeds.exists() else Arms()
    knobs = _knobs(reports_dir)
    committed = {policy: _committed(reports_dir, policy) for policy in evaluations}
    found, is_strict = {}, {}
    for policy, now in evaluations.items():
        plays = _plays_at_head(reports_dir, policy), _plays(reports_dir, policy)
        is_strict[policy] = _have_strict(plays, [now, committed[policy]])
        then_won, now_won = (held_out_outcomes(text, is_strict=is_strict[policy]) for text in plays)
        spread = spread_over(arms.seed_rates(policy, knobs, is_strict=is_strict[policy]))
        try:
            found[policy] = difference([then_won], [now_won], spread=spread)
        except DataError:  # no play of the same tasks: the comparison says so
            continue
    family = dict(zip(found, corrected(list(found.values())), strict=True))
    return [
        Comparison(policy, now, committed[policy], family.get(policy), is_strict[policy])
        for policy, now in evaluations.items()
    ]


def _have_strict(plays: Iterable[str], evaluations: Iterable[Evaluation | None]) -> bool:
    """Whether all that there are recorded strict success, of every held-out task."""
    are_whole = [held_out_outcomes(text).keys() == held_out_outcomes(text, is_strict=True).keys() for text in plays]
    return all(are_whole) and all(one.strict is not None for one in evaluations if one is not None)


def _committed(reports_dir: Path, policy: str) -> Evaluation | None:
    text = file_at(reports_dir, "HEAD", f"evaluate/{policy}.json")
    if text is None:
        return None
    try:
        return Evaluation.model_validate_json(text)
    except ValueError as error:
        raise DataError(
            f"reports/evaluate/{policy}.json at HEAD is not an evaluation ({error}); commit one that `dvc repro` wrote"
        ) from error


def _plays(reports_dir: Path, policy: str) -> str:
    try:
        return (reports_dir / "evaluate" / f"{policy}.tasks.jsonl").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _plays_at_head(reports_dir: Path, policy: str) -> str:
    return file_at(reports_dir, "HEAD", f"evaluate/{policy}.tasks.jsonl") or ""


def _knobs(reports_dir: Path) -> Knobs:
    try:
        return parse_knobs((reports_dir.parent / "params.yaml").read_bytes())
    except (OSError, ValueError):
        return {}
