"""Compares each policy's strict success with the figure committed at HEAD, and says whether they
differ by more than chance; and refuses reports that are not those in dvc.lock.

On one kind of processor a run gives the same bytes, so that a difference was made by a change.
Another kind rounds some sums otherwise, and from there single episodes and the training go other
ways, as with another seed. Both are tested as any two runs are: paired on tasks, with the spread
over the seeds that are committed (`posttrain.evals.significance`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from posttrain.evals.significance import LEVEL, Verdict, corrected, difference, spread_over
from posttrain.pipeline.git import file_at, git
from posttrain.provenance.fingerprint import md5_of
from posttrain.provenance.lockfile import read_entries
from posttrain.report.arms import Arms
from posttrain.report.knobs import Knobs, parse_knobs
from posttrain.report.run_reader import (
    Evaluation,
    Measure,
    held_out_outcomes,
    parse_object,
    parse_results,
    read_object,
)
from posttrain.report.table import percent, points, read_evaluations
from posttrain.runtime.exits import ConfigurationError, DataError


class Change(StrEnum):
    """Kinds of change against the committed figure; figures of other tasks cannot be compared."""

    NEW = "new"
    AS_COMMITTED = "as committed"
    BY_CHANCE = "within chance"
    CHANGED = "CHANGED"
    OTHER_TASKS = "OTHER TASKS"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One policy now and at HEAD. `committed` is None where HEAD has no evaluation of it: nothing
    to compare with, so nothing is wrong. `difference` is None where the two ran other tasks."""

    policy: str
    now: Evaluation
    committed: Evaluation | None
    difference: Verdict | None = None

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
        """True where the committed figure no longer holds."""
        return self.verdict in (Change.CHANGED, Change.OTHER_TASKS)

    @property
    def sentence(self) -> str:
        """A sentence with the figures and the sources of chance that were counted."""
        if self.committed is None:
            return f"No evaluation of the {self.policy} is committed at HEAD to compare with."
        now, then = f"strict success {percent(self.now.strict.share)}", percent(self.committed.strict.share)
        if self.verdict is Change.AS_COMMITTED:
            return f"{self.policy}: {now}, as committed."
        if (one := self.difference) is None:
            return f"{self.policy}: {now}, and {then} is committed, of OTHER TASKS: they cannot be compared."
        by = "more than" if self.is_wrong else "no more than"
        chance = "the choice of tasks" if one.is_of_runs_only else "the choice of tasks and seeds"
        there, here = self.committed.processor, self.now.processor
        is_other = there and here and there != here
        processors = f" (another kind of processor rounds otherwise: {there} there, {here} here)" if is_other else ""
        changed = " It has CHANGED." if self.is_wrong else ""
        return (
            f"{self.policy}: {now}, and {then} is committed: {points(one.estimate, one.low, one.high)} points, "
            f"{by} {chance} does{processors}.{changed}"
        )


def compare_all(root: Path, reports: Path) -> list[Comparison]:
    """Compare every policy, corrected as one family. `reports` is relative to `root`. Raises
    DataError where an evaluation is missing or broken."""
    return _compare(root / reports, read_evaluations(root / reports))


def compare_with_committed(reports_dir: Path) -> str:
    """The policy's sentence. Raises DataError where its evaluation is missing or broken."""
    now = read_object(reports_dir / "evaluate" / "policy.json", Evaluation)
    [policy] = _compare(reports_dir, {"policy": now})
    return policy.sentence


def origin_of_figures(reports_dir: Path) -> str:
    """A sentence that names the commit of the evaluations where no stage has run in this tree and
    they are those at HEAD; else how the policy compares with those."""
    try:
        commit = git(reports_dir, "log", "-1", "--format=%h (%cs)", "--", "evaluate")
        is_edited = bool(git(reports_dir, "status", "--porcelain", "--", "evaluate"))
    except ConfigurationError:  # no repository, or no commit yet
        commit, is_edited = "", False
    if (reports_dir / "index.html").exists() or not commit or is_edited:
        return compare_with_committed(reports_dir)
    return f"These are the committed figures, of {commit}: nothing has run in this tree yet."


def changes_markdown(comparisons: list[Comparison]) -> str:
    """A Markdown table with a row per policy."""
    rows = [
        "| policy | strict success now | committed | difference, points | verdict |",
        "| --- | ---: | ---: | ---: | --- |",
    ]
    for one in comparisons:
        committed = percent(one.committed.strict.share) if one.committed else ""
        apart = points(one.difference.estimate, one.difference.low, one.difference.high) if one.difference else ""
        rows.append(f"| {one.policy} | {percent(one.now.strict.share)} | {committed} | {apart} | {one.verdict} |")
    return "\n".join(rows) + "\n"


def refuse_unrecorded(files: Iterable[Path], lock: Path) -> None:
    """Refuse reports that are not those of the last run, by their MD5s in `dvc.lock`.

    For readers outside of the graph: a report with an edited digit still parses. Raises DataError
    for the first of `files` that differs. Files without an entry pass, and all do without a lock.
    """
    recorded = _recorded(lock) if lock.exists() else {}
    for file in files:
        stage, md5 = recorded.get(file.resolve(), ("", None))
        if md5 is not None and (not file.is_file() or md5_of(file) != md5):
            raise DataError(
                f"{file} is not the one that {lock} records: it was damaged, edited, or written by a stage that was "
                f"run by hand. Run `dvc repro {stage}`, or take it back with `git checkout {file}`"
            )


def _compare(reports_dir: Path, evaluations: Mapping[str, Evaluation]) -> list[Comparison]:
    seeds = reports_dir / "experiments" / "seeds.json"
    arms = read_object(seeds, Arms) if seeds.exists() else Arms()
    knobs = _knobs(reports_dir)
    found = {}
    for policy in evaluations:
        path = f"evaluate/{policy}.tasks.jsonl"
        then = (file_at(reports_dir, "HEAD", path) or "").encode()
        now = (reports_dir / path).read_bytes() if (reports_dir / path).is_file() else b""
        spread = spread_over(arms.seed_rates(policy, knobs))
        try:
            found[policy] = difference([_outcomes(then)], [_outcomes(now)], spread=spread)
        except DataError:  # no episode of the same tasks: the comparison says so
            continue
    family = dict(zip(found, corrected(list(found.values())), strict=True))
    return [
        Comparison(policy, now, _committed(reports_dir, policy), family.get(policy))
        for policy, now in evaluations.items()
    ]


def _committed(reports_dir: Path, policy: str) -> Evaluation | None:
    text = file_at(reports_dir, "HEAD", f"evaluate/{policy}.json")
    try:
        return None if text is None else parse_object(Evaluation, text.encode())
    except ValueError as error:
        raise DataError(
            f"reports/evaluate/{policy}.json at HEAD is not an evaluation ({error}); commit one that `dvc repro` wrote"
        ) from error


def _outcomes(content: bytes) -> dict[str, float]:
    return held_out_outcomes(parse_results(content)[0], Measure.STRICT)


def _knobs(reports_dir: Path) -> Knobs:
    try:
        return parse_knobs((reports_dir.parent / "params.yaml").read_bytes())
    except (OSError, ValueError):
        return {}


def _recorded(lock: Path) -> dict[Path, tuple[str, str | None]]:
    """Stage and MD5 by file."""
    try:
        entries = read_entries(lock.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        entries = None
    if entries is None:
        raise DataError(f"{lock} is damaged: take it back with `git checkout {lock}`, or run `dvc repro`")
    folder = lock.resolve().parent
    return {
        folder / out["path"]: (name, out.get("md5"))
        for name, entry in entries.items()
        for out in entry.get("outs") or ()
    }
